"""Where producers with other options would put a topic's records: the real ones, in virtual time.

Brokers of their own, in this process, have the racks, the leaders and the answer times of the
measured ones. Producers send them what the topic gets, made smaller: at most 2,000 records and 4 MB
a second, and batches in the same proportion.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from trimtab.balance.what_if import LoadWindows
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.options import producer_options
from trimtab.client.producer import AsyncProducer
from trimtab.cluster.config.node import EMBEDDED
from trimtab.kafka.errors import KafkaError, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster
from trimtab.sim.world import World

if TYPE_CHECKING:
    from trimtab.balance.what_if import Floats
    from trimtab.cli.what_if.measured import Measured

_RECORDS_S: Final = 2000.0
_BYTES_S: Final = 4e6
_SECONDS: Final = 5.0
_TICK_S: Final = 0.005
_RUNS: Final = 3
_PRODUCERS: Final = 3
_BATCH_SIZE: Final = 16384
_NETWORK_S: Final = 0.0005
"""What the virtual network takes of an answer's time."""
_WORST: Final = 0.5
_CONFIG: Final = {**EMBEDDED, "log.message.timestamp.after.max.ms": 2**63 - 1}


class _Scene(NamedTuple):
    """What producers meet.

    Attributes:
        leaders: by partition, as a number in `racks` and `delays_s`.
        delays_s: how long each broker takes to answer.
    """

    leaders: Sequence[int]
    racks: Sequence[str | None]
    delays_s: Sequence[float]
    records_s: float
    bytes_s: float


class ProducerShares:
    """The shares of a topic's partitions with producers of these options: see `changes.Shares`.

    Args:
        now: the options that producers have now, beside the defaults.
        then: those that they would have.

    Raises:
        UsageError: an option is wrong; or with those of now the shares would be others than
            those measured, by more than half of a partition's mean.
    """

    def __init__(
        self, measured: Measured, topic: str, now: Mapping[str, str], then: Mapping[str, str]
    ) -> None:
        windows = measured.windows
        columns = windows.find_topic(topic)
        self._measured = measured
        self._options = then
        self._cache: dict[tuple[int, int], Floats] = {}
        actual = windows.bytes_in[:, columns].mean(axis=0)
        if not actual.any() or not measured.records_in.get(topic):
            raise UsageError(f"--producer: nothing was written to {topic} while it was measured")
        scene = self._scene(windows, topic, len(columns))
        simulated = _simulate(scene, now, 0) * len(columns)
        self.error = float(abs(simulated - actual / actual.mean()).max())
        if self.error > _WORST:
            raise UsageError(
                "--producer: with their present options producers would give a partition of "
                f"{topic} {self.error:.0%} of the mean more or less than measured: name those "
                "options with --producer-now; if its records have keys, these decide"
            )

    def __call__(self, topic: str, count: int, random: Random) -> Floats:
        seed = random.randrange(_RUNS)
        if (count, seed) not in self._cache:
            scene = self._scene(self._measured.windows, topic, count)
            self._cache[count, seed] = _simulate(scene, self._options, seed)
        return self._cache[count, seed]

    def _scene(self, windows: LoadWindows, topic: str, count: int) -> _Scene:
        """Leaders of new partitions come in turn, as they are placed only later."""
        columns = windows.find_topic(topic)
        led = [windows.load.partitions[at].leader for at in columns]
        if min(led) < 0:
            raise UsageError(f"--producer: a partition of {topic} has no leader")
        alive = [each.id for each in windows.load.brokers.values() if each.is_alive]
        led += [alive[at % len(alive)] for at in range(count - len(led))]
        brokers = sorted({*led})
        medians = {
            each.broker: each.median_s for window in self._measured.answered for each in window
        }
        # The busiest window: there the queues are longest.
        bytes_s = float(windows.bytes_in[:, columns].sum(axis=1).max())
        return _Scene(
            [brokers.index(each) for each in led],
            [windows.load.brokers[each].rack for each in brokers],
            [max(0.0, medians.get(each, 0.0) - _NETWORK_S) for each in brokers],
            self._measured.records_in[topic],
            bytes_s,
        )


def read_producer_options(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """By topic the options of `TOPIC:NAME=VALUE,…`.

    Raises:
        UsageError: a word has another form, or there is no such option or value.
    """
    found: dict[str, dict[str, str]] = {}
    for word in words:
        topic, colon, rest = word.partition(":")
        pairs = [each.partition("=") for each in rest.split(",")]
        if not topic or not colon or not all(name and equals for name, equals, _ in pairs):
            raise UsageError(
                f"--producer {word!r}: write TOPIC:NAME=VALUE,…, such as "
                "flights:partitioner.rack.aware=true"
            )
        found.setdefault(topic, {}).update({name: value for name, _, value in pairs})
        producer_options("127.0.0.1:9092", {**found[topic]})
    return found


def _simulate(scene: _Scene, options: Mapping[str, str], seed: int) -> Floats:
    with World(seed) as world, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is deprecated was said when the options were read
        cluster = VirtualCluster(world, len(scene.racks), _CONFIG)
        for at, rack in enumerate(scene.racks):
            own = _CONFIG if rack is None else {**_CONFIG, "broker.rack": rack}
            cluster.brokers[at] = cluster.nodes[at + 1] = VirtualBroker(world, at, own)
        cluster.start()
        try:
            return world.run(_send(world, cluster, scene, options))
        except KafkaError as error:
            raise UsageError(f"--producer: the producers failed: {error}") from error
        finally:
            world.run(cluster.close())


async def _send(
    world: World, cluster: VirtualCluster, scene: _Scene, options: Mapping[str, str]
) -> Floats:
    while not all(node.is_serving for node in cluster.nodes):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    topic = "topic"
    rate = min(_RECORDS_S, scene.records_s)
    scale = min(1.0, _BYTES_S / scene.bytes_s)
    value = bytes(max(1, round(scene.bytes_s * scale / rate)))
    batch = max(1, round(int(options.get("batch.size", _BATCH_SIZE)) * scale))
    racks = sorted({each for each in scene.racks if each is not None})
    async with AsyncAdmin(cluster.bootstrap_servers) as admin:
        assignment = {at: [leader] for at, leader in enumerate(scene.leaders)}
        await admin.create_topic(topic, assignment=assignment)
        for node, delay_s in zip(cluster.brokers, scene.delays_s, strict=True):
            assert node.broker is not None
            node.broker.listener.faults.slow(1000 * delay_s)
        count = max(_PRODUCERS, len(racks))

        async def produce(number: int) -> None:
            own: dict[str, Any] = {**options, "batch.size": batch}
            own["bootstrap.servers"] = cluster.bootstrap_servers
            if racks:
                own.setdefault("client.rack", racks[number % len(racks)])
            random = world.random(f"producer {number}")
            loop = asyncio.get_running_loop()
            end_s = loop.time() + _SECONDS
            async with AsyncProducer(own, random=random) as producer:
                next_s = loop.time()
                while (now_s := loop.time()) < end_s:
                    while next_s <= now_s:
                        await producer.send(topic, value)
                        next_s += random.expovariate(rate / count)
                    await asyncio.sleep(max(_TICK_S, next_s - now_s))
                await producer.flush()

        await asyncio.gather(*(produce(number) for number in range(count)))
        ends = await admin.list_offsets([TopicPartition(topic, at) for at in assignment])
    counts = numpy.array([ends[each].offset for each in sorted(ends)], float)
    shares: Floats = counts / counts.sum()
    return shares
