"""A seeded schedule of faults in a cluster, and of the operators' actions.

Every run has another mixture: some kinds of faults are more frequent, others do not occur (swarm
testing), and faults overlap.

Records that were acknowledged with acks=all and `min.insync.replicas` of 2 are kept as long as at
most one replica at a time may have lost writes (KIP-966). The controller treats every start after
an unclean end as a loss, since it cannot tell, and if all replicas may have lost writes it elects
the last known leader. So the schedule follows these three rules, and no others:

- A broker loses power only if every other broker that has ended has registered with the controller
  again, no other one has a flipped bit, and for each of its guarded partitions another member of
  the ISR is running, by the controller's journal on disk.
- No other broker ends until the controller knows of the loss, and would not elect the broker that
  lost writes as the last known leader.
- Nobody changes `min.insync.replicas` meanwhile: as in Kafka, any change clears the ELR, which may
  have the only replica that has lost nothing.

Bit rot, or an empty replacement disk, counts as a power loss until the broker runs with its new
disk. Faults that lose no writes, such as kills, may come at any time.

Long because every kind of fault asks the same rules whether it may come now.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from errno import EIO, ENOSPC
from typing import Any

from lab.reliability.checkers import Checkers
from lab.reliability.fault_chains import FaultChains
from lab.reliability.losses import Losses
from lab.reliability.operators import OperatorRequests
from lab.reliability.topic_kinds import TopicKind
from trimtab.cluster.broker.coordinator import Coordinator
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from trimtab.cluster.broker.partition import Partition
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import verify
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.virtual_cluster import VirtualBroker, VirtualCluster, VirtualNode

_LENGTH_AT = 8
_BEFORE_LENGTH_ENDS = 12
_MAGIC_AT = 16
"""Position in a batch from which on damage is noticed: the CRC and what it covers follow."""
_RECORDS_AT = 61
"""Position of the first record in a batch."""

_RESTORE_AFTER_S = 60.0
"""Seconds that operators wait for a replica to come into sync before they use a backup."""

_DISK_ACTIONS = ("append", "flush", "read", "write", "truncate", "delete", "rename")


class FaultSchedule:
    """Injects faults until `heal`.

    Args:
        kinds: the topics' guarantees, by name.
        hosts: the clients' hosts.

    Attributes:
        counts: the number of injected faults, by kind.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        checkers: Checkers,
        kinds: Mapping[str, TopicKind],
        hosts: list[str],
    ) -> None:
        self._cluster = cluster
        self._checkers = checkers
        self._world = cluster.world
        self._random = random = cluster.world.random("faults")
        self._guarded = [name for name, kind in kinds.items() if kind.keeps]
        self._hosts = [*(node.host for node in cluster.nodes), *hosts]
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._losses = Losses(cluster, self._guarded)
        self._chains = FaultChains(cluster, self._losses, random, self._start_later)
        self._exclusive_task: asyncio.Task[None] | None = None
        self._failed_disks: dict[VirtualNode, None] = {}
        self._is_healing = False
        self._is_repairing = False
        self._repaired_from_s = 0.0
        self.counts: Counter[str] = Counter()
        self._pace_s = random.choice((0.2, 0.6, 2.0))
        operators = OperatorRequests(cluster, checkers, kinds, self._losses, random, self._run)
        faults: tuple[tuple[Callable[[], str], float], ...] = (
            (self._kill_broker, 6),
            (self._crash_broker, 5),
            (self._close_broker, 3),
            (self._run_down, 2),
            (self._strand_leader, 2),
            (self._kill_controller, 2),
            (self._crash_controller, 2),
            (self._cut_pair, 5),
            (self._cut_connections, 4),
            (self._isolate, 3),
            (self._split, 1),
            (self._reset, 3),
            (self._slow_link, 3),
            (self._answer_late, 3),
            (self._pause, 4),
            (self._slow_disk, 2),
            (self._fail_disk, 2),
            (self._rot, 2),
            (operators.delete_records, 3),
            (operators.elect_preferred, 2),
            (operators.elect_unclean, 1),
            (operators.alter_config, 1),
            (operators.create_topic, 1),
            (operators.delete_topic, 1),
            (operators.reassign, 2),
        )
        if self._world.random("coordinators").random() < 0.5:
            faults = *faults, (self._rot_coordinator, 4)
        weights = [usual * random.choice((0, 0, 0.3, 1, 1, 3)) for _, usual in faults]
        if not any(weights):
            weights = [usual for _, usual in faults]
        self._kinds = [kind for kind, _ in faults]
        self._weights = weights

    async def run(self) -> None:
        """Inject faults, one after the other, until cancelled."""
        random = self._random
        while True:
            await asyncio.sleep(random.expovariate(1 / self._pace_s))
            (fault,) = random.choices(self._kinds, self._weights)
            kind = fault()
            if kind:
                self.counts[kind] += 1
            if self._exclusive_task is not None:
                await asyncio.wait([self._exclusive_task])
                self._exclusive_task = None

    def heal(self) -> None:
        """End all faults: the network and the disks work again, and every node runs. A disk that
        fails for good stays until `repair`."""
        self._is_healing = True
        for task in self._tasks:
            task.cancel()
        network, loop = self._world.network, self._world.loop
        network.heal()
        for host in self._hosts:
            network.set_link(host, ANY, NetworkLink())
        for node in self._cluster.nodes:
            loop.resume(node.host)
            if node not in self._failed_disks:
                self._heal_disk(node)
        self.run_operators()

    def find_unserved(self) -> str:
        """Describe a partition without a running leader although a replica that may lead it runs;
        empty if there is none."""
        controller = self._cluster.controller.controller
        if controller is None:
            return "the controller is down"
        well = [each.id for each in self._cluster.brokers if each.is_serving]
        for topic in controller.image.topics.values():
            for partition in topic.partitions:
                may_lead = [each for each in (*partition.isr, *partition.elr) if each in well]
                if may_lead and partition.leader not in well:
                    return f"no running leader of {topic.name}-{partition.id}: {partition}"
        return ""

    def repair(self) -> None:
        """From now on replace disks that fail for good, one at a time."""
        self._is_repairing = True
        self._repaired_from_s = self._world.loop.time()

    def run_operators(self) -> None:
        """The operators' actions. Restart brokers with failed logs, which accept no writes until
        they are recovered, but only when the controller knows of all losses of other brokers.
        After `heal` start all nodes that are down; after `repair` replace failed disks."""
        if self._is_healing:
            for each in self._cluster.nodes:
                if each.life is None:
                    each.start()
        if self._is_repairing:
            for node in self._cluster.brokers:
                if self._needs_new_disk(node) and not self._replace_disk(node):
                    self._save_data(node)
        for node in self._cluster.brokers:
            if (
                node.is_serving
                and node.disk.fault is None
                and node.has_failed_logs
                and self._losses.may_end(node)
            ):
                self._run(self._restart(node))

    def _save_data(self, node: VirtualBroker) -> None:
        """Keep the data of a broker that is not replaced, as no other may have it. A disk that
        fails for good is copied to another, with its flipped bits. These are restored from a backup
        if no replica has come into sync for long: a follower cannot read beyond a flipped bit."""
        if node in self._failed_disks:
            self._heal_disk(node)
        if node.disk.rotten and self._world.loop.time() > self._repaired_from_s + _RESTORE_AFTER_S:
            self._world.trace.append(f"{node.host} gets its files from a backup")
            node.disk.restore()

    def _heal_disk(self, node: VirtualNode) -> None:
        self._failed_disks.pop(node, None)
        node.disk.fault = None
        node.disk.flush_s = None
        if isinstance(node, VirtualBroker) and not node.disk.rotten:
            self._losses.note_healed(node)

    def _needs_new_disk(self, node: VirtualNode) -> bool:
        """Whether the node's disk fails for good, or has rotten data."""
        return node in self._failed_disks or bool(node.disk.rotten)

    def find_needed_disks(self) -> str:
        """The brokers that need another disk; empty if none does."""
        return ", ".join(each.host for each in self._cluster.brokers if self._needs_new_disk(each))

    def _replace_disk(self, node: VirtualBroker) -> bool:
        """Replace a disk by an empty one; False if that might lose acknowledged records."""
        if not self._losses.may_lose(node):
            return False
        self._world.trace.append(f"{node.host} gets a new disk")
        if node.life is not None:
            node.kill()
        self._losses.note_loss(node)
        node.disk.replace()
        self._checkers.disk_replaced(node.id)
        self._failed_disks.pop(node, None)
        node.start()
        return True

    def _replace_disk_later(self, node: VirtualBroker) -> None:
        """Replace a disk after some seconds; try again until it is allowed."""

        def attempt(lives: int) -> None:
            if self._needs_new_disk(node) and not self._replace_disk(node):
                self._later(1, attempt, lives)

        self._later(self._draw_s(1, 5, 20), attempt, node.lives)

    # Tasks

    def _run(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.result()  # an error fails the run

    def _later(self, seconds: float, what: Callable[..., object], *args: object) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            what(*args)

        self._run(wait())

    def _draw_s(self, *scales: float) -> float:
        return self._random.choice(scales) * self._random.expovariate(1)

    # Processes

    def _start(self, node: VirtualNode, lives: int) -> None:
        if node.life is None and node.lives == lives:
            node.start()

    def _start_later(self, node: VirtualNode, seconds: float) -> None:
        self._later(seconds, self._start, node, node.lives)

    def _pick_broker(self) -> VirtualBroker | None:
        running = [broker for broker in self._cluster.brokers if broker.life is not None]
        return self._random.choice(running) if running else None

    def _kill_broker(self) -> str:
        node = self._pick_broker()
        if node is None or not self._losses.may_end(node):
            return ""
        self._losses.note_end(node)
        node.kill()
        self._start_later(node, self._draw_s(0.05, 1, 5, 20))
        return "kill of a broker"

    def _crash_broker(self) -> str:
        node = self._pick_broker()
        if node is None or not self._losses.may_lose(node):
            return ""
        self._losses.note_loss(node)
        node.crash()
        self._start_later(node, self._draw_s(0.05, 1, 5, 20))
        return "power loss of a broker"

    def _close_broker(self) -> str:
        node = self._pick_broker()
        if node is None or not self._losses.may_end(node):
            return ""
        self._run(self._restart(node, self._draw_s(0.05, 1, 5, 20)))
        return "clean end of a broker"

    def _run_down(self) -> str:
        self._run_chain(self._chains.run_down())
        return "run-down of brokers"

    def _strand_leader(self) -> str:
        self._run_chain(self._chains.strand_leader())
        return "stranded leader"

    def _run_chain(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run a chain of faults; half of the time without other faults meanwhile."""
        task = self._run(steps)
        if self._random.random() < 0.5:
            self._exclusive_task = task

    async def _restart(self, node: VirtualBroker, after_s: float = 0) -> None:
        if node.life is None:
            return
        lives = node.lives
        self._losses.note_end(node)
        await node.close()
        await asyncio.sleep(after_s)
        self._start(node, lives)

    def _kill_controller(self) -> str:
        node = self._cluster.controller
        if node.life is None:
            return ""
        node.kill()
        self._start_later(node, self._draw_s(0.05, 0.5, 2, 5))
        return "kill of the controller"

    def _crash_controller(self) -> str:
        node = self._cluster.controller
        if node.life is None:
            return ""
        node.crash()
        self._start_later(node, self._draw_s(0.05, 0.5, 2, 5))
        return "power loss of the controller"

    def _pause(self) -> str:
        node = self._random.choice(self._cluster.nodes)
        if node.life is None:
            return ""
        self._world.trace.append(f"pause {node.host}")
        self._world.loop.pause(node.host)
        self._later(self._draw_s(0.1, 1, 4), self._world.loop.resume, node.host)
        return "pause of a process"

    # The network

    def _cut_pair(self) -> str:
        a, b = self._random.sample(self._hosts, 2)
        self._cut([(a, b)])
        return "cut between two hosts"

    def _cut_connections(self) -> str:
        """Delay what is sent over one or all connections of a host, while new ones work. So a
        request arrives after those that its client sent when it had given up waiting."""
        ends = self._world.network.connections_from(self._random.choice(self._hosts))
        if not ends:
            return ""
        if self._random.random() < 0.5:
            ends = [self._random.choice(ends)]
        self._cut(ends, one_way=True)
        return "cut of connections"

    def _isolate(self) -> str:
        host = self._random.choice(self._hosts)
        self._cut([(host, other) for other in self._hosts if other != host])
        return "isolation of a host"

    def _split(self) -> str:
        size = self._random.randrange(1, len(self._hosts))
        one = self._random.sample(self._hosts, size)
        self._cut([(a, b) for a in one for b in self._hosts if b not in one])
        return "split of the network"

    def _cut(self, pairs: list[tuple[str, str]], one_way: bool | None = None) -> None:
        one_way = self._random.random() < 0.3 if one_way is None else one_way
        for_s = self._draw_s(0.2, 2, 8, 20)
        network = self._world.network

        def heal() -> None:
            for a, b in pairs:
                network.heal(a, b)

        for a, b in pairs:
            if self._random.random() < 0.5 and one_way:
                a, b = b, a
            network.cut(a, b, one_way)
        self._later(for_s, heal)

    def _reset(self) -> str:
        a, b = self._random.sample(self._hosts, 2)
        return "reset of connections" if self._world.network.reset(a, b) else ""

    def _slow_link(self) -> str:
        host = self._random.choice(self._hosts)
        random = self._random
        mean_ms = random.choice((1, 20, 200))
        link = NetworkLink(0.1, mean_ms, random.choice((10_000, 1_000_000)))
        self._world.network.set_link(host, ANY, link)
        self._later(self._draw_s(1, 10), self._world.network.set_link, host, ANY, NetworkLink())
        return "slow network"

    def _answer_late(self) -> str:
        """Some of what a broker receives and sends is late, at random; the rest is not."""
        host = self._random.choice(self._cluster.brokers).host
        share, late_ms = self._random.choice((0.02, 0.1, 0.5)), self._random.choice((10, 60, 1000))
        link = NetworkLink(late_share=share, late_ms=late_ms)
        self._world.network.set_link(host, ANY, link)
        self._later(self._draw_s(1, 10), self._world.network.set_link, host, ANY, NetworkLink())
        return "late answers"

    # Disks

    def _slow_disk(self) -> str:
        """Slow down asynchronous flushes; for synchronous disk operations, pause the process."""
        node = self._random.choice(self._cluster.nodes)
        mean_s = self._random.choice((0.01, 0.1, 1))
        random = self._world.random(f"{node.host} flushes")
        node.disk.flush_s = lambda: random.expovariate(1 / mean_s)
        until_s = self._world.loop.time() + self._draw_s(2, 10)
        self._run(self._pause_repeatedly(node, mean_s, until_s))
        return "slow disk"

    async def _pause_repeatedly(self, node: VirtualNode, mean_s: float, until_s: float) -> None:
        loop, random = self._world.loop, self._random
        while loop.time() < until_s:
            loop.pause(node.host)
            await asyncio.sleep(random.expovariate(1 / mean_s))
            loop.resume(node.host)
            await asyncio.sleep(random.expovariate(1 / mean_s))
        node.disk.flush_s = None

    def _fail_disk(self) -> str:
        node = self._random.choice(self._cluster.nodes)
        if node.disk.fault is not None:
            return ""
        error = self._random.choice((EIO, ENOSPC))
        failing = self._random.sample(_DISK_ACTIONS, self._random.randint(1, len(_DISK_ACTIONS)))
        if error == ENOSPC:
            failing = [each for each in failing if each in ("append", "write")] or ["append"]
        share = self._random.choice((0.05, 0.5, 1.0))
        random = self._world.random(f"{node.host} errors")

        def fault(action: str, path: str) -> int:
            return error if action in failing and random.random() < share else 0

        if isinstance(node, VirtualBroker):
            # The broker ends when it notices, and may have lost records unless the disk is full.
            losses = self._losses
            if not (losses.may_lose(node) if error == EIO else losses.may_end(node)):
                return ""
            if error == EIO:
                losses.note_loss(node)
            else:
                losses.note_end(node)
        self._world.trace.append(f"{node.host} fails: {' '.join(failing)}, {share:.0%}")
        node.disk.fault = fault
        if isinstance(node, VirtualBroker) and self._random.random() < 0.3:
            self._failed_disks[node] = None
            if self._random.random() < 0.5:
                self._replace_disk_later(node)
            return "disk that fails for good"

        def heal() -> None:
            self._heal_disk(node)
            self.run_operators()

        self._later(self._draw_s(0.1, 2, 10), heal)
        return "failing disk"

    def _rot(self) -> str:
        """Flip a bit of a stored record, silently. The broker counts as one that may have lost
        records until it has another disk."""
        node = self._pick_broker()
        if node is None or not self._may_rot(node):
            return ""
        if self._random.random() < 0.5:
            self._run_chain(self._rot_unread(node))
        elif self._flip(node, self._find_logs(node), _RECORDS_AT) is None:
            return ""
        return "flipped bit"

    def _rot_coordinator(self) -> str:
        """Flip a bit in a log of groups or transactional ids, and have it loaded: at once, as after
        records that the log refused, or whenever the broker leads after a clean end."""
        node = self._pick_broker()
        if node is None or not self._may_rot(node):
            return ""
        logs = self._find_logs(node, [GROUPS_TOPIC, TRANSACTIONS_TOPIC])
        flipped = self._flip(node, logs, _MAGIC_AT)
        if flipped is None:
            return ""
        key, path = flipped
        led = _find_led(node, key)
        self._run(self._watch_coordinator(node, key, path, led and led.shard))
        if led is not None and self._random.random() < 0.6:
            if led.shard is not None:  # else it is being loaded already
                led._start_again(ErrorCode.NOT_COORDINATOR)
        elif self._losses.may_end(node):
            self._run(self._restart(node))
        return "damaged coordinator log"

    async def _watch_coordinator(
        self, node: VirtualBroker, key: TopicPartition, path: str, before: object
    ) -> None:
        """Nothing is loaded from a damaged log.

        Args:
            before: what had been loaded before the damage.
        """
        while path in node.disk.rotten:
            led = _find_led(node, key)
            if led is not None and led.shard not in (None, before) and _is_damaged(node, path):
                self._checkers.fail(f"{node.host} has loaded {key} from a damaged log")
            await asyncio.sleep(0.2)

    async def _rot_unread(self, node: VirtualBroker) -> None:
        """Flip a bit in records that no follower has fetched yet."""
        with self._chains.cut_off([node], self._cluster.brokers):
            await asyncio.sleep(self._draw_s(0.5, 1))
            if self._may_rot(node):
                self._flip(node, self._find_logs(node, leads=True), _RECORDS_AT, is_unread=True)

    def _may_rot(self, node: VirtualBroker) -> bool:
        return (
            node.broker is not None
            and not any(each.disk.rotten for each in self._cluster.nodes)
            and self._losses.may_lose(node)
        )

    def _find_logs(
        self, node: VirtualBroker, topics: Sequence[str] = (), leads: bool = False
    ) -> list[Partition]:
        """A broker's partitions with records, of guarded topics, or those of some topics."""
        assert node.broker is not None
        return [
            partition
            for partition in node.broker.partitions.values()
            if partition.topic in (topics or self._guarded)
            and partition.log.size
            and (partition.leadership is not None or not leads)
        ]

    def _flip(
        self, node: VirtualBroker, logs: list[Partition], first: int, is_unread: bool = False
    ) -> tuple[TopicPartition, str] | None:
        """Flip a bit of a batch, at `first` or later in it; returns the partition and the file."""
        random = self._random
        if not logs:
            return None
        partition = random.choice(logs)
        segments = [each for each in partition.log._segments if each.size]
        path = (segments[-1] if is_unread else random.choice(segments)).paths[0]
        batches = [each for each in _batches_of(_read(node, path)) if each[1] > first]
        if not batches:
            return None
        is_last = is_unread or random.random() < 0.3
        at, size = batches[-1] if is_last else random.choice(batches)
        position = random.randrange(at + first, at + size)
        lasts = random.random() < 0.7
        node.disk.flip(path, position, random.randrange(8), lasts)
        self._world.trace.append(f"{node.host}: a bit of {path} flips at {position}")
        self._replace_disk_later(node)
        return TopicPartition(partition.topic, partition.index), path


def _find_led(node: VirtualBroker, key: TopicPartition) -> CoordinatorPartition[Any] | None:
    """The coordinator of a partition, if this broker leads it."""
    if node.broker is None:
        return None
    coordinators: tuple[Coordinator[Any], ...] = node.broker.groups, node.broker.transactions
    (led,) = (each._led for each in coordinators if each.topic == key.topic)
    return led.get(key.partition)


def _read(node: VirtualNode, path: str) -> bytes:
    fault, node.disk.fault = node.disk.fault, None
    content = node.disk.read_file(path) or b""
    node.disk.fault = fault
    return content


def _is_damaged(node: VirtualNode, path: str) -> bool:
    """Whether a batch of a file has a wrong CRC."""
    content = _read(node, path)
    try:
        for position, _ in _batches_of(content):
            verify(content, position)
    except CorruptData:
        return True
    return False


def _batches_of(content: bytes) -> list[tuple[int, int]]:
    """Position and size of each batch in a file."""
    batches = []
    position = 0
    while position < len(content):
        length = content[position + _LENGTH_AT : position + _BEFORE_LENGTH_ENDS]
        size = _BEFORE_LENGTH_ENDS + int.from_bytes(length, "big")
        batches.append((position, size))
        position += size
    return batches
