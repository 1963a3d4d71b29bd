"""One replica of a partition on a fake broker."""

from __future__ import annotations

from typing import Any

from tests.steps import finish
from trimtab.cluster import config
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.traffic import TopicTraffic
from trimtab.cluster.config import BROKER
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_appending import Appended
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.kafka.options import Config, read
from trimtab.kafka.wire.batch_cy import BatchBuilder, restamp
from trimtab.sim.disk import VirtualDisk

SELF, SECOND, THIRD = 1, 2, 3
TOPIC_ID = bytes(range(16))
NOW_MS = 1_000_000_000


class Host:
    """Broker 1. Brokers 1, 2 and 3 may be in an ISR, with broker epoch 11."""

    id = SELF
    lag_limit_s = 30.0

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.active = {1, 2, 3}
        self.proposals: list[tuple[int, ...]] = []

    def time(self) -> float:
        return self.now_s

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id in self.active and broker_epoch in (-1, 11)

    def propose_isr(self, partition: Partition) -> None:
        assert partition.leadership is not None
        assert partition.leadership.proposal is not None
        self.proposals.append(partition.leadership.proposal.isr)

    def choose_replica(self, partition: Partition, rack: str, offset: int) -> int:
        return SECOND if rack == "near" else -1


class Watching:
    """Records the notifications it gets."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def appended(self, partition: Partition) -> None:
        self.told.append(f"appended up to {partition.log.log_end_offset}")

    def committed(self, partition: Partition) -> None:
        self.told.append(f"committed up to {partition.high_watermark}")

    def changed(self, partition: Partition) -> None:
        self.told.append("changed")


class Stand:
    """Broker 1's replica of a partition of t on brokers 1, 2 and 3, without a role yet."""

    def __init__(self, index: int = 0) -> None:
        self.disk = VirtualDisk()
        self.host = Host()
        self.log = Log(self.disk, f"t-{index}", LogConfig(), lambda: NOW_MS)
        self.registration = PartitionRegistration(index, SELF, 5, 7, (1, 2, 3), (1, 2, 3))
        self.partition = Partition(
            self.host,
            "t",
            TOPIC_ID,
            self.registration._replace(leader_epoch=-1),
            self.log,
            self.values(),
            lambda: NOW_MS,
            TopicTraffic(),
        )
        self.watching = Watching()
        self.partition.watchers[self.watching] = None

    def values(self, **given: str) -> Config:
        options = {name.replace("_", "."): value for name, value in given.items()}
        return config.resolve_topic(read(BROKER, {}), options)

    def lead(self, **changed: Any) -> Partition:
        self.registration = self.registration._replace(**changed)
        self.partition.lead(self.registration)
        return self.partition

    def follow(self, **changed: Any) -> Partition:
        self.registration = self.registration._replace(**{"leader": SECOND, **changed})
        self.partition.follow(self.registration)
        return self.partition

    def append(self, count: int = 1, acks: int = 1, **identity: Any) -> Appended:
        return finish(self.partition.append(memoryview(batch(count, **identity)), True, acks))

    def fetched(self, broker: int, offset: int, epoch: int = 11) -> None:
        self.partition.follower_fetched(broker, epoch, offset, 0)

    def decide(self, **changed: Any) -> None:
        """The controller has granted the proposal, and the metadata has been replayed."""
        self.registration = self.registration._replace(
            partition_epoch=self.registration.partition_epoch + 1, **changed
        )
        self.partition.lead(self.registration)


def batch(count: int = 1, **identity: Any) -> bytearray:
    builder = BatchBuilder(1 << 20, 0)
    for _ in range(count):
        builder.append(NOW_MS, b"k", b"v", None)
    return builder.build(**identity)


def sent(offset: int, count: int, epoch: int) -> bytearray:
    """A batch as a leader sends it."""
    made = batch(count)
    restamp(made, 0, offset, epoch)
    return made
