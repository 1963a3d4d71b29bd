"""One run of the reliability simulation: a cluster, who uses it, faults, and what must hold.

    plan ─▶ cluster up, topics ─▶ minutes of faults under load ─▶ heal ─▶ all well ─▶ read back

A run is a seed: how many brokers and partitions there are, who sends what with which options, which
faults come when. Whatever the checkers find ends it with a `Violation`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trimtab.client.admin import AsyncAdmin
from trimtab.records import TopicPartition
from trimtab.sim.checkers import Checkers, Violation, find_unrest
from trimtab.sim.faults import FaultSchedule
from trimtab.sim.topic_kinds import GUARDED, choose_kinds
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.workload import Reader, Sender, judge, read_all
from trimtab.sim.world import World

OPTIONS: Final[dict[str, Any]] = {
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 4000,
    "replica.fetch.wait.max.ms": 1500,
    "replica.socket.timeout.ms": 3000,
    "replica.fetch.backoff.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 5_000,
    "log.retention.check.interval.ms": 3_000,
    "log.cleaner.backoff.ms": 3_000,
    "leader.imbalance.check.interval.seconds": 20,
    "metadata.log.max.record.bytes.between.snapshots": 20_000,
}
"""Of all nodes: times are shorter than usual, so that a minute holds more."""

CALM_S: Final = 120.0
"""Within which all must be well once the faults have ended."""

_CHECK_S = 1.0
_AMPLE_MS = 7_200_000


class Run(NamedTuple):
    """What a run came to."""

    seed: int
    virtual_s: float
    faults: Counter[str]
    acknowledged: int
    looks: int
    trace_hash: str


def run_seed(seed: int, keep_trace: bool = False) -> Run:
    """One run.

    Raises:
        Violation: something did not hold; the notes say when, and what happened last.
    """
    return Simulation(seed, keep_trace).run()


class Simulation:
    """One run, to be looked at afterwards.

    Args:
        keep_trace: keep every line of the world's trace and of the checkers' story.
    """

    def __init__(self, seed: int, keep_trace: bool = False) -> None:
        self.world: Final = World(seed, keep_trace)
        self._random = self.world.random("plan")
        brokers = self._random.choice((3, 3, 4, 5))
        self.cluster: Final = VirtualCluster(self.world, brokers, OPTIONS)
        self.kinds: Final = choose_kinds(self._random)
        self.checkers: Final = Checkers(self.cluster, self.kinds, keep_trace)
        self._senders: list[Sender] = []
        self._readers: list[Reader] = []
        self._sending: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self.schedule: FaultSchedule | None = None

    def run(self) -> Run:
        """Raises what `run_seed` does."""
        with self.checkers:
            try:
                run = self.world.run(self._run())
            except BaseException:
                with contextlib.suppress(Exception):  # what follows from the first
                    self.world.close()
                raise
            self.world.close()
            return run

    def tell(self) -> list[str]:
        """What happened and what was seen of it, in its order, a line each."""
        lines = [*self.world.trace.lines, *self.checkers.tell_story()]
        return sorted(lines, key=lambda line: float(line.partition(" ")[0]))

    async def _run(self) -> Run:
        self.cluster.start()
        await self._until(self._find_down, CALM_S)
        places = await self._make_topics()
        self._start_users(places)
        clients = [each.host for each in self._senders] + [each.host for each in self._readers]
        self.schedule = schedule = FaultSchedule(self.cluster, self.checkers, self.kinds, clients)
        faults = asyncio.get_running_loop().create_task(schedule.run(), name="faults")
        try:
            await self._elapse(self._random.uniform(20, 60), faults)
        finally:
            faults.cancel()
        schedule.heal()
        await self._until(schedule.find_unserved, CALM_S)
        schedule.repair()
        for sender in self._senders:
            sender.stop()
        await self._until(lambda: find_unrest(self.cluster) or schedule.find_worn_out(), CALM_S)
        await self._until(self._find_sending, CALM_S)
        await self._check_stored(places)
        for task in self._reading:
            task.cancel()
        await asyncio.wait(self._reading)
        await self.cluster.close()
        await asyncio.sleep(_CHECK_S)
        self._check()
        return Run(
            self.world.seed,
            self.world.loop.time(),
            schedule.counts,
            sum(len(sender.ledger.acknowledged) for sender in self._senders),
            self.checkers.looks,
            self.world.trace_hash,
        )

    # Who uses it

    async def _make_topics(self) -> list[TopicPartition]:
        places: list[TopicPartition] = []
        bootstrap = self.cluster.bootstrap_servers
        with self.world.network.at("admin"):
            async with AsyncAdmin(bootstrap, random=self.world.random("admin")) as admin:
                for topic, kind in self.kinds.items():
                    partitions = self._random.choice((1, 2, 3)) if topic == GUARDED else 1
                    await admin.create_topic(topic, partitions, 3, config=kind.config)
                    places += [TopicPartition(topic, index) for index in range(partitions)]
        return places

    def _start_users(self, places: list[TopicPartition]) -> None:
        random = self._random
        bootstrap = self.cluster.bootstrap_servers
        for number, topic in enumerate((GUARDED, *self.kinds)):
            kind = self.kinds[topic]
            options: dict[str, Any] = {
                "delivery_timeout_ms": _AMPLE_MS,
                "max_block_ms": _AMPLE_MS,
                "request_timeout_ms": random.choice((500, 2000, 5000)),
                "linger_ms": random.choice((0, 5)),
                "metadata_max_age_ms": 10_000,
            }
            if not kind.is_idempotent:
                options |= {"enable_idempotence": False, "acks": kind.acks}
            self._senders.append(
                Sender(self.world, number, bootstrap, topic, kind, options, self.checkers)
            )
        self._readers.append(
            Reader(
                self.world,
                0,
                bootstrap,
                [place for place in places if self.kinds[place.topic].keeps],
                self.kinds,
                self.checkers,
                {
                    "fetch_max_wait_ms": 2000,
                    "request_timeout_ms": 5000,
                    "metadata_max_age_ms": 10_000,
                },
            )
        )
        create_task = asyncio.get_running_loop().create_task
        for sender in self._senders:
            with self.world.network.at(sender.host):
                self._sending.append(create_task(sender.run(), name=sender.host))
        for reader in self._readers:
            with self.world.network.at(reader.host):
                self._reading.append(create_task(reader.run(), name=reader.host))

    # Time

    async def _elapse(self, seconds: float, *others: asyncio.Task[None]) -> None:
        """Let time pass; whatever fails meanwhile ends the run."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, _CHECK_S))
            self._check()
            for task in (*self._sending, *self._reading, *others):
                if task.done():
                    task.result()

    async def _until(self, find_missing: Callable[[], str], limit_s: float) -> None:
        """Wait until nothing is missing any more.

        Raises:
            Violation: something is, when the time is up.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while missing := find_missing():
            if loop.time() > deadline_s:
                self.checkers.fail(f"{limit_s:g} s were not enough: {missing}")
            if self.schedule is not None:
                self.schedule.look_after()
            await self._elapse(0.5)

    def _check(self) -> None:
        self.checkers.check_metadata()
        self.checkers.check_processes()

    # What is to come

    def _find_down(self) -> str:
        return ", ".join(str(node) for node in self.cluster.nodes if not node.is_serving)

    def _find_sending(self) -> str:
        waiting = [task.get_name() for task in self._sending if not task.done()]
        return f"{waiting} have records without an outcome" if waiting else ""

    def _start_of(self, place: TopicPartition) -> int:
        history = self.checkers.find_history(*place)
        return 0 if history is None else history.start

    async def _check_stored(self, places: list[TopicPartition]) -> None:
        """Read everything back, twice: anew, and by those who were there all the time."""
        with self.world.network.at("last"):
            stored = await read_all(self.world, self.cluster.bootstrap_servers, places)
        judge(self._senders, stored, self.checkers, self.world.now_ms())

        def find_unread() -> str:
            return ", ".join(
                f"{reader.host} has read {place} up to {offset}, where {stored[place][-1]} is"
                for reader in self._readers
                for place, offset in reader.next.items()
                if stored[place] and offset <= stored[place][-1].offset >= self._start_of(place)
            )

        await self._until(find_unread, CALM_S)
        await self._until(
            lambda: find_unrest(self.cluster) or self.checkers.find_disagreement(), CALM_S
        )


__all__ = ["Run", "Simulation", "Violation", "run_seed"]
