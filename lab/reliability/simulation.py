"""One run of the reliability simulation: a cluster, its clients, faults and checkers.

    plan ─▶ cluster, topics ─▶ a minute of faults under load ─▶ heal ─▶ all in sync ─▶ read back

The load are senders, readers of all partitions, and in most runs the members of a group, which
come and go.

The seed decides everything: the number of brokers and partitions, the senders and their options,
and the faults and their times. The first error that a checker finds ends the run with a
`Violation`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lab.reliability.checkers import Checkers, Violation, find_unsettled
from lab.reliability.faults import FaultSchedule
from lab.reliability.group_checker import GroupChecker
from lab.reliability.members import GROUP_OPTIONS, GroupPlan, Member
from lab.reliability.topic_kinds import GROUPS, GUARDED, PLAIN, TopicKind, choose_kinds
from lab.reliability.transactors import (
    ATOMIC,
    ATOMIC_KIND,
    TRANSACTION_OPTIONS,
    TransactionScene,
    find_unstable,
)
from lab.reliability.workload import Reader, Sender, check_records, read_all
from trimtab.client.admin import AsyncAdmin
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from trimtab.cluster.metadata.features import TRANSACTION_VERSION
from trimtab.kafka.records import TopicPartition
from trimtab.sim.virtual_cluster import VirtualCluster
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
    "min.insync.replicas": 2,
    **GROUP_OPTIONS,
    **TRANSACTION_OPTIONS,
}
"""Options of all nodes; intervals are shorter than by default, so that more happens in a minute."""

SETTLE_S: Final = 120.0
"""Seconds after the last fault within which the cluster must have recovered."""

_CHECK_S = 1.0
_WITH_TRANSACTIONS = 0.5
"""Share of the runs."""
_WITH_GROUP = 0.75
"""Share of the runs: without a group there are more faults in a second of the machine's time."""
_LONG_TIMEOUT_MS = 7_200_000


class Run(NamedTuple):
    """The results of a run.

    Attributes:
        virtual_s: its virtual duration, seconds.
        faults: injected faults by kind.
        acknowledged: records that the senders had acknowledged.
        commits: commits of offsets that the members had acknowledged.
        checks: how often the checkers read a replica.
    """

    seed: int
    virtual_s: float
    faults: Counter[str]
    acknowledged: int
    commits: int
    checks: int
    trace_hash: str


def run_seed(seed: int, keep_trace: bool = False) -> Run:
    """Run the simulation with this seed.

    Raises:
        Violation: a checker found an error; its notes have the time and the last events.
    """
    return Simulation(seed, keep_trace).run()


class Simulation:
    """One run, whose events can be read afterwards.

    Args:
        keep_trace: keep every line of the world's trace, and every event of the checkers.
    """

    def __init__(self, seed: int, keep_trace: bool = False) -> None:
        self.world: Final = World(seed, keep_trace)
        self._random = self.world.random("plan")
        brokers = self._random.choice((3, 3, 4, 5))
        self.cluster: Final = VirtualCluster(self.world, brokers, OPTIONS)
        self.kinds: Final = choose_kinds(self._random)
        self._has_group = self.world.random("swarm").random() < _WITH_GROUP
        self._has_transactions = self.world.random("transactions").random() < _WITH_TRANSACTIONS
        self._all_kinds: Final = self.kinds | self._find_own_kinds()
        self.checkers: Final = Checkers(self.cluster, self._all_kinds, keep_trace)
        self._senders: list[Sender] = []
        self._readers: list[Reader] = []
        self._members: list[Member] = []
        self.group: GroupChecker | None = None
        self._transactions: TransactionScene | None = None
        self._sending: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self.schedule: FaultSchedule | None = None

    def run(self) -> Run:
        """Raises the same errors as `run_seed`."""
        with self.checkers:
            try:
                run = self.world.run(self._run())
            except BaseException:
                with contextlib.suppress(Exception):  # errors that follow from the first
                    self.world.close()
                raise
            self.world.close()
            return run

    def describe_events(self) -> list[str]:
        """The events of the world and the checkers in order of time, a line each."""
        lines = [*self.world.trace.lines, *self.checkers.describe_events()]
        return sorted(lines, key=lambda line: float(line.partition(" ")[0]))

    async def _run(self) -> Run:
        self.cluster.start()
        await self._until(self._find_down, SETTLE_S)
        partitions = await self._create_topics()
        self._start_clients(partitions)
        clients = [each.host for each in self._senders] + [each.host for each in self._readers]
        clients += [each.host for each in self._members]
        if self._transactions is not None:
            clients += self._transactions.hosts
        self.schedule = schedule = FaultSchedule(
            self.cluster, self.checkers, self._all_kinds, clients
        )
        faults = asyncio.get_running_loop().create_task(schedule.run(), name="faults")
        try:
            await self._elapse(self._random.uniform(20, 60), faults)
        finally:
            faults.cancel()
        schedule.heal()
        await self._until(schedule.find_unserved, SETTLE_S)
        schedule.repair()
        for member in self._members:
            member.stay()
        for sender in self._senders:
            sender.stop()
        if self._transactions is not None:
            self._transactions.stop()
        await self._until(
            lambda: find_unsettled(self.cluster) or schedule.find_needed_disks(), SETTLE_S
        )
        await self._until(self._find_sending, SETTLE_S)
        await self._check_stored(partitions)
        if self.group is not None:
            await self._check_group(self.group)
        if self._transactions is not None:
            await self._check_transactions(self._transactions)
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
            0 if self.group is None else self.group.commits,
            self.checkers.checks,
            self.world.trace.hash,
        )

    # Topics and clients

    def _find_own_kinds(self) -> dict[str, TopicKind]:
        """The topics of groups and transactions."""
        kinds = {}
        if self._has_group or self._has_transactions:
            kinds[GROUPS_TOPIC] = GROUPS
        if self._has_transactions:
            kinds |= {TRANSACTIONS_TOPIC: GROUPS, ATOMIC: ATOMIC_KIND}
        return kinds

    async def _create_topics(self) -> list[TopicPartition]:
        created: list[TopicPartition] = []
        bootstrap = self.cluster.bootstrap_servers
        with self.world.network.at("admin"):
            async with AsyncAdmin(bootstrap, random=self.world.random("admin")) as admin:
                for topic, kind in self.kinds.items():
                    partitions = self._random.choice((1, 2, 3)) if topic == GUARDED else 1
                    await admin.create_topic(topic, partitions, 3, config=kind.config)
                    created += [TopicPartition(topic, index) for index in range(partitions)]
                if self._has_transactions:
                    self._transactions = TransactionScene(self.world, bootstrap)
                    await admin.create_topic(
                        ATOMIC, self._transactions.partitions, 3, config=ATOMIC_KIND.config
                    )
                    if self._transactions.version == 1:
                        level = {TRANSACTION_VERSION: 1}
                        await admin.update_features(level, "safe_downgrade")
        return created

    def _start_clients(self, partitions: list[TopicPartition]) -> None:
        random = self._random
        bootstrap = self.cluster.bootstrap_servers
        for number, topic in enumerate((GUARDED, *self.kinds)):
            kind = self.kinds[topic]
            options: dict[str, Any] = {
                "delivery_timeout_ms": _LONG_TIMEOUT_MS,
                "max_block_ms": _LONG_TIMEOUT_MS,
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
                [partition for partition in partitions if self.kinds[partition.topic].keeps],
                self.kinds,
                self.checkers,
                {
                    "fetch_max_wait_ms": 2000,
                    "request_timeout_ms": 5000,
                    "metadata_max_age_ms": 10_000,
                },
            )
        )
        if self._has_group:
            self._make_group(partitions)
        create_task = asyncio.get_running_loop().create_task
        for sender in self._senders:
            with self.world.network.at(sender.host):
                self._sending.append(create_task(sender.run(), name=sender.host))
        for reader in self._readers:
            with self.world.network.at(reader.host):
                self._reading.append(create_task(reader.run(), name=reader.host))
        for member in self._members:
            self._consuming.append(create_task(member.run(), name=member.host))
        if self._transactions is not None:
            self._sending += self._transactions.start()
            self._reading.append(self._transactions.read())

    def _make_group(self, partitions: list[TopicPartition]) -> None:
        random = self.world.random("group")
        plan = GroupPlan.draw(random)
        read = [each for each in partitions if each.topic in (GUARDED, PLAIN)]
        topics = sorted({each.topic for each in read})
        self.group = group = GroupChecker("group", read, self.checkers, len(plan.protocols) == 1)
        self._members = [
            Member(self.world, number, self.cluster.bootstrap_servers, topics, plan, group)
            for number in range(random.choice((2, 3, 4)))
        ]

    # Time

    async def _elapse(self, seconds: float, *others: asyncio.Task[None]) -> None:
        """Let time pass; an error of a checker or a task ends the run."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, _CHECK_S))
            self._check()
            for task in (*self._sending, *self._reading, *self._consuming, *others):
                if task.done():
                    task.result()

    async def _until(self, find_missing: Callable[[], str], limit_s: float) -> None:
        """Wait until `find_missing` returns an empty string.

        Raises:
            Violation: it still does not after `limit_s` virtual seconds.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while missing := find_missing():
            if loop.time() > deadline_s:
                self.checkers.fail(f"after {limit_s:g} s: {missing}")
            if self.schedule is not None:
                self.schedule.run_operators()
            await self._elapse(0.5)

    def _check(self) -> None:
        self.checkers.check_metadata()
        self.checkers.check_processes()

    # Conditions to wait for, and the final check

    def _find_down(self) -> str:
        return ", ".join(str(node) for node in self.cluster.nodes if not node.is_serving)

    def _find_sending(self) -> str:
        waiting = [task.get_name() for task in self._sending if not task.done()]
        return f"{waiting} have records without an outcome" if waiting else ""

    def _ends(self, group: GroupChecker) -> dict[TopicPartition, int]:
        histories = {each: self.checkers.find_history(*each) for each in group.processed}
        return {each: found.end_offset if found else 0 for each, found in histories.items()}

    async def _check_group(self, group: GroupChecker) -> None:
        """The members read everything, and commit that; then they leave, and it stays so."""

        def find_unfinished() -> str:
            ends = self._ends(group)
            finished = {str(each.membership): each.finished(ends) for each in self._members}
            return group.find_unfinished(finished, ends)

        def find_living() -> str:
            return ", ".join(each.get_name() for each in self._consuming if not each.done())

        bootstrap, random = self.cluster.bootstrap_servers, self.world.random("group admin")
        for member in self._members:
            member.commit_again()
        with self.world.network.at("last"):
            async with AsyncAdmin(bootstrap, random=random) as admin:
                await self._until(find_unfinished, SETTLE_S)
                deadline_s = self.world.loop.time() + SETTLE_S
                while not await self._has_committed(group, admin, deadline_s):
                    await self._elapse(0.5)
                for member in self._members:
                    member.stop()
                await self._until(find_living, SETTLE_S)
                await self._has_committed(group, admin, deadline_s=0)

    async def _check_transactions(self, scene: TransactionScene) -> None:
        """Every transaction has ended, and readers of committed records see whole ones only."""
        with self.world.network.at("last"):
            await self._until(lambda: find_unstable(self.cluster), SETTLE_S)
            await scene.read_last()
            await self._until(scene.find_unread, SETTLE_S)
            scene.check()

    async def _has_committed(
        self, group: GroupChecker, admin: AsyncAdmin, deadline_s: float
    ) -> bool:
        """Whether the group's offsets are the ends of the partitions; after the deadline they
        must be."""
        found = await admin.list_group_offsets(group.name)
        committed = {partition: each.offset for partition, each in found.items()}
        ends = self._ends(group)
        behind = {each: end for each, end in ends.items() if committed.get(each, 0) != end}
        if behind and self.world.loop.time() > deadline_s:
            self.checkers.fail(f"the group has committed {committed}, the ends are {behind}")
        return not behind

    def _start_of(self, partition: TopicPartition) -> int:
        history = self.checkers.find_history(*partition)
        return 0 if history is None else history.start

    async def _check_stored(self, partitions: list[TopicPartition]) -> None:
        """Read every partition twice: with a new consumer, and with the consumers of the run."""
        with self.world.network.at("last"):
            stored = await read_all(self.world, self.cluster.bootstrap_servers, partitions)
        check_records(self._senders, stored, self.checkers, self.world.now_ms())

        def find_unread() -> str:
            return ", ".join(
                f"{reader.host} has read {partition} up to {offset}, but it ends with "
                f"{stored[partition][-1]}"
                for reader in self._readers
                for partition, offset in reader.next.items()
                if stored[partition]
                and offset <= stored[partition][-1].offset >= self._start_of(partition)
            )

        await self._until(find_unread, SETTLE_S)
        await self._until(
            lambda: find_unsettled(self.cluster) or self.checkers.find_disagreement(), SETTLE_S
        )


__all__ = ["Run", "Simulation", "Violation", "run_seed"]
