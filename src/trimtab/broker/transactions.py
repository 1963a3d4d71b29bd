"""The transactional ids that a broker coordinates: those whose partition of `__transaction_state`
it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.coordinator import Coordinator
from trimtab.broker.coordinator_partition import CoordinatorPartition
from trimtab.broker.coordinator_topic import TRANSACTIONS_TOPIC
from trimtab.broker.marker_sender import MarkerSender
from trimtab.coordinator.effects import Ending, Now
from trimtab.coordinator.transaction_shard import TransactionRules, TransactionShard
from trimtab.metadata.features import TRANSACTION_VERSION
from trimtab.storage.storage import StorageError


class Transactions(Coordinator[TransactionShard]):
    """Which transactional ids this broker coordinates.

    Args:
        view: the topics of the cluster, and the options.
        now_ms: wall time.
        take_id: a producer id that no producer has had; None if there is none right now.
        disk_failed: told when a log cannot be written or read.
    """

    def __init__(
        self,
        view: ClusterView,
        now_ms: Callable[[], int],
        take_id: Callable[[], int | None],
        disk_failed: Callable[[StorageError], None],
    ) -> None:
        super().__init__(TRANSACTIONS_TOPIC, view, now_ms, disk_failed)
        self._take_id = take_id
        self._markers = MarkerSender(view)

    def start(self) -> None:
        """Begin to delete ids that nobody has used for long. The interval is read now."""
        self._begin_expiry("transaction.remove.expired.transaction.cleanup.interval.ms")

    def close(self) -> None:
        self._markers.close()
        super().close()

    def _make_shard(self, max_batch: Callable[[], int]) -> TransactionShard:
        config = self.view.config
        return TransactionShard(
            TransactionRules(
                cast(int, config["transaction.max.timeout.ms"]),
                cast(bool, config["transaction.two.phase.commit.enable"]),
                cast(int, config["transactional.id.expiration.ms"]),
            ),
            lambda: self.view.image.features.get(TRANSACTION_VERSION, 0),
            self._take_id,
            max_batch,
        )

    def _expire(self, shard: TransactionShard, now: Callable[[], Now]) -> Iterator[None]:
        return shard.expire(now)

    def _end_transactions(
        self, led: CoordinatorPartition[TransactionShard], endings: Sequence[Ending]
    ) -> None:
        shard = led.shard
        for each in endings:
            self._end(led, shard, each)

    def _end(
        self,
        led: CoordinatorPartition[TransactionShard],
        shard: TransactionShard | None,
        ending: Ending,
    ) -> None:
        self._markers.send(
            ending,
            led.leader_epoch,
            lambda: led.shard is shard,  # another one has loaded the ending, and sends it itself
            lambda: led.act(lambda shard, now: shard.complete(now, ending)),
        )
