"""A whole cluster inside this process: brokers on loopback ports, and their controller.

    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        Producer(bootstrap_servers=cluster.bootstrap_servers)

The nodes are the same as those of `trimtab cluster up`, which runs each in its own process; they
send each other the same requests. A broker whose disk has failed is down, and others lead its
partitions. It is not restarted until `start_broker` is called.

    start_broker ─▶ up ─┬─ stop_broker   clean shutdown: it hands over leadership first
                        ├─ kill_broker   the process ends at once; what it wrote is kept
                        └─ power_off     what it did not flush is lost; its connections stay silent
    slow; isolate … heal; fill_disk … free_disk

On disk, below `data`:

    controller/             the cluster's id and secret, and its journal `__cluster_metadata-0`
    broker-0/ broker-1/ …   a directory per broker, laid out as Kafka's

Long because it is one public class, whose calls all act on the same nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from trimtab.balance.limits import LimitUsage
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.config import BROKER, check_broker
from trimtab.cluster.config.node import CONTROLLER_ID, EMBEDDED, OWN_OPTIONS, format_address
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.disk.descriptors import files_per_storage
from trimtab.cluster.disk.faulty_files import FaultyDisk
from trimtab.cluster.server.cluster_secret import ClusterSecret
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.open_host import refuse_open_host
from trimtab.cluster.server.secret_file import (
    MECHANISM,
    SECRET_FILE,
    USER,
    new_secret,
    read_or_make_secret,
)
from trimtab.cluster.storage.identity import identify_cluster
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.kafka.arguments import (
    checked_integer,
    checked_mapping,
    checked_text,
    checked_wait_ms,
    refuse_copying,
)
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.kafka.notebook import to_table
from trimtab.kafka.options import read, read_given
from trimtab.threads.clock import wall_clock_ms
from trimtab.threads.loop_thread import LoopThread

_log = logging.getLogger(__name__)

_HEAL_S = 60.0
"""Seconds that `heal` waits for the brokers that were cut off."""

T = TypeVar("T")


class Cluster:
    """Brokers and a controller in this process.

    As a context manager it is up inside the block: `with` runs the brokers on one thread and the
    controller on another, so that fetches do not wait while the controller decides about thousands
    of partitions; `async with` runs all on the running loop. `start` and `stop` do the same as
    `with`.

    Args:
        brokers: their number; their ids are 0, 1, ….
        racks: a rack per broker; None for none.
        data: the data directory, which a later cluster can reuse. None for a temporary one that is
            removed at the end.
        ports: a port per broker, or the first of consecutive ones; None for free ones.
        host: the address to listen on and to advertise.
        insecure: whether `host` may be one that other machines can reach, although clients are not
            asked who they are.
        config: broker options (`trimtab.cluster.config.BROKER`), dotted or in snake case, the same
        for all.
        storage: returns the storage for `controller` and `broker-<id>`, instead of `data`.
        now_ms: wall time in milliseconds.
        random: for topic ids, placement and other choices; pass a seeded one to repeat them.

    Raises:
        UsageError: an argument is invalid, or contradicts another.
    """

    def __init__(
        self,
        brokers: int = 1,
        racks: Sequence[str | None] | None = None,
        data: str | Path | None = None,
        ports: int | Sequence[int] | None = None,
        host: str = "127.0.0.1",
        config: Mapping[str, object] | None = None,
        *,
        insecure: bool = False,
        storage: Callable[[str], Storage] | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        random: Random | None = None,
    ) -> None:
        brokers = checked_integer("brokers", brokers, 1)
        if racks is not None and (isinstance(racks, str) or not isinstance(racks, Sequence)):
            raise UsageError(f"racks={racks!r}: give a list, one for each broker")
        for rack in racks or ():
            if rack is not None:
                checked_text("rack", rack)
        if data is not None and not isinstance(data, str | Path):
            raise UsageError(f"data={data!r}: give a directory as a str or a Path")
        if racks is not None and len(racks) != brokers:
            raise UsageError(
                f"racks={list(racks)!r}: {len(racks)} racks for {brokers} brokers; name one each"
            )
        if data is not None and storage is not None:
            raise UsageError(f"data={str(data)!r} and storage are both given; give one")
        self._count = brokers
        self._racks = [None] * brokers if racks is None else list(racks)
        self._data = data
        self._ports = _choose_ports(ports, brokers)
        self._host = checked_text("host", host)
        refuse_open_host(host, insecure)
        given = read_given(
            BROKER,
            checked_mapping(
                "config", {} if config is None else config, "{'log.retention.ms': 3600000}"
            ),
        )
        self._options: dict[str, object] = {**EMBEDDED, **given}
        check_broker(read(BROKER, self._options))
        for name in OWN_OPTIONS:
            if name in given:
                raise UsageError(
                    f"broker option {name} differs from broker to broker; a cluster sets it from "
                    "its own arguments"
                )
        self._now_ms = now_ms
        self._random = Random() if random is None else random
        self._is_repeatable = random is not None and storage is not None
        self._secret: str | None = None
        self._temporary: str | None = None
        self._thread: LoopThread | None = None
        self._controller_thread: LoopThread | None = None
        self._is_started = False  # on these threads
        self._changing = asyncio.Lock()
        self._controller: ControllerNode | None = None
        self._brokers: dict[int, _Member] = {}
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._make_storage = storage or self._directory
        self._cluster_id = ""
        self._controller_address = ("", 0)
        self._bound: dict[int, int] = {}
        self._disks: dict[str, FaultyDisk] = {}
        self._begin_faults()

    def _begin_faults(self) -> None:
        self._faults = [BrokerFaults() for _ in range(self._count)]
        self._isolated: set[tuple[int, int | None]] = set()
        self._without_power: set[int] = set()

    __reduce_ex__ = refuse_copying

    def __repr__(self) -> str:
        if self._controller is None:
            return f"<Cluster of {self._count} brokers, not up>"
        down = f", down: {self.down}" if self.down else ""
        return f"<Cluster at {self.bootstrap_servers}{down}>"

    def _repr_html_(self) -> str:
        """Its brokers, in a notebook."""
        members = dict(self._brokers)
        rows = [
            (
                broker,
                rack,
                format_address(*members[broker].address) if broker in members else None,
                "up" if broker in members else "down",
            )
            for broker, rack in enumerate(self._racks)
        ]
        return to_table(repr(self).strip("<>"), ("broker", "rack", "address", "state"), rows)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker that is up, in the order of their ids."""
        return [member.address for _, member in sorted(self._brokers.items())]

    @property
    def down(self) -> list[int]:
        """The ids of the brokers that are down."""
        return [broker for broker in range(self._count) if broker not in self._brokers]

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of the brokers that are up, for clients."""
        return ",".join(format_address(*address) for address in self.addresses)

    def slow(self, broker: int = 0, produce_ms: float = 20) -> None:
        """Make a broker delay every produce response by `produce_ms`; 0 ends the delay.

        It handles one request at a time per connection, as in KIP-794's measurements. The delay
        remains when the broker is restarted.

        Raises:
            UsageError: no such broker is up, or a negative time.
        """
        checked_wait_ms("produce_ms", produce_ms)
        self._find(broker)
        self._faults[broker].slow(produce_ms)

    @property
    def node_options(self) -> dict[str, Any]:
        """Options of a client that may do what else only nodes may: `abort_transaction` of an
        `Admin`. They have the cluster's secret.

        Raises:
            UsageError: the cluster is not up.
        """
        if self._secret is None:
            raise UsageError("the cluster is not up")
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": self._secret,
        }

    @property
    def limit_usage(self) -> LimitUsage:
        """Replicas of each broker, the limits on them, and how many requests these have refused
        (KIP-578); also for Prometheus: `LimitCollector(lambda: cluster.limit_usage)`.

        Raises:
            UsageError: the cluster is not up.
        """
        controller = self._controller
        if controller is None:
            raise UsageError("the cluster is not up")

        async def measure() -> LimitUsage:
            return controller.controller.limit_usage()

        if self._controller_thread is None:
            return controller.controller.limit_usage()
        return self._controller_thread.run(measure)

    # Synchronous

    def start(self) -> Self:
        """Start the cluster on its own threads, and return it; it serves requests by then.

        Without `stop` it runs until the interpreter exits, which also removes temporary data.

        Raises:
            OSError: a port is in use.
            StorageError: the disk failed.
            UsageError: it is up already, or the data are in use or belong to another cluster.
        """
        self._refuse_running()
        try:
            self._thread = LoopThread("trimtab-cluster")
            self._thread.close_at_exit(self._close)
            self._controller_thread = LoopThread("trimtab-controller")
            self._thread.run(_go_on, self._open)
            self._is_started = True
            return self
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it cleanly, and remove temporary data. Does nothing if it is not up.

        Raises:
            StorageError: the disk failed; the next start recovers.
        """
        # Ctrl-C may interrupt any line: then the next `stop` or `start` does the rest.
        thread, self._is_started = self._thread, False
        if thread is None:
            return
        try:
            if not thread.is_released:
                thread.run(_go_on, self._close)
        except Exception:
            self._stop_threads(thread)
            raise
        self._stop_threads(thread)

    def _stop_threads(self, thread: LoopThread) -> None:
        thread.stop()
        if self._controller_thread is not None:
            self._controller_thread.stop()
        self._thread = self._controller_thread = None

    def start_broker(self, broker: int) -> None:
        """Start a broker that was stopped or killed, on its old port; on return it serves requests.

        Raises:
            OSError: its port is in use.
            StorageError: the disk failed, or is full.
            UsageError: it is up, cut off from the others, there is no such broker, or the cluster
                does not run in `with`.
        """
        if checked_integer("broker", broker) in self._brokers:
            raise UsageError(f"broker={broker}: it is up already")
        if (broker, None) in self._isolated:
            raise UsageError(f"broker={broker}: it is cut off and would wait for ever: heal first")
        self._run(self._start_broker, broker)

    def stop_broker(self, broker: int) -> None:
        """Stop a broker cleanly: it hands over leadership first (controlled shutdown).

        Raises:
            StorageError: the disk failed.
            UsageError: no such broker is up, or the cluster does not run in `with`.
        """
        self._find(broker)
        self._run(self._stop_broker, broker)

    def kill_broker(self, broker: int) -> None:
        """Stop a broker at once, as if its process were killed: it sends and writes nothing more.

        Raises:
            UsageError: no such broker is up, or the cluster does not run in `with`.
        """
        self._find(broker)
        self._run(self._kill_broker, broker)

    def power_off(self, broker: int) -> None:
        """Turn a broker's host off, until `start_broker`. Bytes that it did not flush are lost,
        wholly or but for a random part, perhaps torn. Its open connections stay silent, as no host
        closes them; new ones are refused.

        Raises:
            UsageError: no such broker is up, the cluster does not run in `with`, or its `storage`
                was given, whose bytes it cannot lose.
        """
        self._disk_of(broker)
        self._run(self._power_off, broker)

    def fill_disk(self, broker: int) -> None:
        """Let a broker's disk be full until `free_disk`: every write fails with ENOSPC. At the
        first one the broker ends, and others lead its partitions.

        Raises:
            UsageError: as `power_off`.
        """
        self._disk_of(broker)
        self._run(self._fill_disk, broker)

    def free_disk(self, broker: int) -> None:
        """Free a broker's disk, and start the broker again if it has ended because of it. Does
        nothing if the disk is not full.

        Raises:
            UsageError: no such broker, it is cut off from the others, or the cluster does not run
                in `with`.
        """
        self._check_broker(broker)
        self._run(self._free_disk, broker)

    def isolate(self, broker: int, other: int | None = None) -> None:
        """Cut a broker off from all others and all clients, or from one other broker, until `heal`.

        No connection is closed and none is refused, but nothing is read and nothing is sent. A
        broker that is cut off from all leads nothing after `broker.session.timeout.ms`.

        Raises:
            UsageError: no such broker, or the cluster does not run in `with`.
        """
        self._check_broker(broker)
        if other is not None:
            self._check_broker(other, "other")
            if other == broker:
                raise UsageError(f"other={other}: is the broker itself; give another, or none")
        self._run(self._isolate, broker, other)

    def heal(self) -> None:
        """End every `isolate`. What waited is sent and received. On return the brokers that are
        up take part in the cluster again.

        Raises:
            UsageError: the cluster does not run in `with`.
            Unavailable: they do not within 60 s.
        """
        self._run(self._heal)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Asynchronous

    async def __aenter__(self) -> Self:
        self._refuse_running()
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    # Both

    def _refuse_running(self) -> None:
        if self._is_started or (self._thread is None and self._controller is not None):
            raise UsageError(f"the cluster is up already at {self.bootstrap_servers}")
        self.stop()  # what Ctrl-C has left of it
        self._changing = asyncio.Lock()

    def _find(self, broker: int) -> _Member:
        broker = checked_integer("broker", broker)
        if broker not in self._brokers:
            up = ", ".join(map(str, sorted(self._brokers))) or "none"
            raise UsageError(f"broker={broker}: brokers that are up: {up}")
        return self._brokers[broker]

    def _check_broker(self, broker: int, name: str = "broker") -> None:
        if not 0 <= checked_integer(name, broker) < self._count:
            raise UsageError(f"{name}={broker}: brokers are 0 to {self._count - 1}")

    def _disk_of(self, broker: int) -> FaultyDisk:
        self._find(broker)
        disk = self._disks.get(_storage_name(broker))
        if disk is None:
            raise UsageError(
                f"broker={broker}: its disk cannot fail, as the cluster was given `storage`; give "
                "`data` instead, or neither"
            )
        return disk

    def _run(self, change: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        if self._thread is None or not self._is_started:
            raise UsageError(
                "brokers are started, stopped and disturbed only in a cluster with its own thread: "
                "enter it with `with`, and call this with asyncio.to_thread from coroutines"
            )
        self._thread.run(_go_on, change, *args)

    async def _open(self) -> None:
        async with self._changing:
            try:
                await self._start_all()
            except BaseException:
                await self._close_all()
                raise

    async def _start_all(self) -> None:
        storage = self._make_storage("controller")
        self._cluster_id = identify_cluster(storage, self._random)
        self._secret = self._find_secret()
        self._controller = controller = await self._on_controllers_loop(
            self._make_controller(storage)
        )
        self._refuse_missing_brokers(controller)
        port = await self._on_controllers_loop(controller.listen(self._host, 0))
        self._controller_address = self._host, port
        await self._on_controllers_loop(controller.start())
        for broker_id, port in enumerate(self._ports):
            self._brokers[broker_id] = await self._open_broker(broker_id, port)
        members = list(self._brokers.values())
        await _run_all(member.broker.start(*member.address) for member in members)
        everything = controller.controller.journal.end_offset
        await _run_all(member.broker.metadata.reach(everything) for member in members)
        for broker_id, member in self._brokers.items():
            self._watch(broker_id, member)
        self._bound = {broker_id: each.address[1] for broker_id, each in self._brokers.items()}

    async def _make_controller(self, storage: Storage) -> ControllerNode:
        random = Random(self._random.getrandbits(64))  # not shared between threads
        return ControllerNode(
            CONTROLLER_ID,
            self._cluster_id,
            storage,
            self._for_nodes(),
            self._options,
            self._now_ms,
            random,
        )

    def _find_secret(self) -> str:
        """The cluster's secret, from its file if it has directories."""
        path = Path(self._path("controller"))
        if path.is_absolute():
            return read_or_make_secret(str(path / SECRET_FILE), durable=self._data is not None)
        return self._random.randbytes(32).hex() if self._is_repeatable else new_secret()

    def _for_nodes(self) -> ClusterSecret:
        assert self._secret is not None
        if not self._is_repeatable:
            return ClusterSecret(self._secret)
        random = Random(self._random.getrandbits(64))
        return ClusterSecret(self._secret, lambda: random.randbytes(24).hex())

    async def _on_controllers_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._controller_thread is None:
            return await coroutine
        loop = self._controller_thread.loop
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))

    async def _open_broker(self, broker_id: int, port: int) -> _Member:
        name = _storage_name(broker_id)
        storage = self._make_storage(name)
        broker = Broker(
            broker_id,
            self._cluster_id,
            storage,
            self._controller_address,
            self._for_nodes(),
            {**self._options, **self._own_options(broker_id, name)},
            self._now_ms,
            self._random,
            self._faults[broker_id],
        )
        try:
            address = self._host, await broker.bind(self._host, port)
        except BaseException:
            await broker.close(hand_over=False)
            raise
        return _Member(broker, storage, address)

    async def _start_broker(self, broker_id: int) -> None:
        if broker_id not in self._bound:
            raise UsageError(f"broker={broker_id}: brokers are 0 to {self._count - 1}")
        await self._stop_watching(broker_id)  # after a failure it may still be closing
        if broker_id in self._without_power:
            self._without_power.discard(broker_id)
            self._faults[broker_id].heal()
            self._cut()
        member = await self._open_broker(broker_id, self._bound[broker_id])
        try:
            await member.broker.start(*member.address)
        except BaseException:
            await member.broker.close(hand_over=False)
            raise
        self._brokers[broker_id] = member
        self._watch(broker_id, member)

    def _watch(self, broker_id: int, member: _Member) -> None:
        """Take a broker whose disk has failed down, until `start_broker` is called. Its log has the
        reason."""

        async def watch() -> None:
            await member.broker.failed.wait()
            del self._brokers[broker_id]
            try:
                await member.broker.close(hand_over=False)
            except StorageError as error:
                _log.error("broker=%d did not close cleanly: %s", broker_id, error)

        self._watchers[broker_id] = asyncio.ensure_future(watch())

    async def _stop_watching(self, broker_id: int) -> _Member | None:
        """Stop watching a broker, and remove it; None if it has failed and is closed."""
        member = self._brokers.pop(broker_id, None)
        watcher = self._watchers.pop(broker_id, None)
        if watcher is not None:
            if member is not None:
                watcher.cancel()
            await asyncio.wait([watcher])
        return member

    async def _stop_broker(self, broker_id: int) -> None:
        member = await self._stop_watching(broker_id)
        if member is not None:
            await member.broker.close()

    async def _kill_broker(self, broker_id: int) -> None:
        member = await self._stop_watching(broker_id)
        if member is not None:
            member.broker.abort()
            member.storage.close()

    async def _power_off(self, broker_id: int) -> None:
        disk = self._disk_of(broker_id)
        self._without_power.add(broker_id)
        self._faults[broker_id].cut()
        await self._kill_broker(broker_id)
        disk.lose_power(self._random)

    async def _fill_disk(self, broker_id: int) -> None:
        self._disk_of(broker_id).is_full = True

    async def _free_disk(self, broker_id: int) -> None:
        disk = self._disks.get(_storage_name(broker_id))
        if disk is None or not disk.is_full:
            return
        disk.is_full = False
        member, watcher = self._brokers.get(broker_id), self._watchers.get(broker_id)
        is_up = member is not None and member.broker.replicas.failure is None
        if is_up or watcher is None:  # nothing watches a broker that was stopped or killed
            return
        await asyncio.wait([watcher])
        await self._start_broker(broker_id)

    async def _isolate(self, broker_id: int, other: int | None) -> None:
        self._isolated.add((broker_id, other))
        self._cut()

    def _cut(self) -> None:
        for broker_id, other in self._isolated:
            if other is None:
                self._faults[broker_id].cut()
            else:
                self._faults[broker_id].cut((self._host, self._bound[other]))
                self._faults[other].cut((self._host, self._bound[broker_id]))

    async def _heal(self) -> None:
        cut_off = {broker_id for broker_id, other in self._isolated if other is None}
        self._isolated.clear()
        for broker_id, faults in enumerate(self._faults):
            if broker_id not in self._without_power:
                faults.heal()
        try:
            async with asyncio.timeout(_HEAL_S):
                await _run_all(
                    self._take_part(self._brokers[broker_id].broker)
                    for broker_id in cut_off & self._brokers.keys()
                )
        except TimeoutError:
            raise Unavailable(
                f"brokers that were cut off: {sorted(cut_off)}; not all of them take part in the "
                f"cluster again within {_HEAL_S} s"
            ) from None

    async def _take_part(self, broker: Broker) -> None:
        """Wait until a broker knows what the controller has decided and is not fenced, or has
        failed."""
        assert self._controller is not None
        decided = self._controller.controller.journal.end_offset
        waits = [
            asyncio.ensure_future(broker.take_part(decided)),
            asyncio.ensure_future(broker.failed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _close(self) -> None:
        async with self._changing:
            await self._close_all()

    async def _close_all(self) -> None:
        found = [
            await self._stop_watching(broker_id)
            for broker_id in {**self._brokers, **self._watchers}
        ]
        members = [member for member in found if member is not None]
        controller, self._controller = self._controller, None
        temporary, self._temporary = self._temporary, None
        self._secret = None
        for faults in self._faults:
            faults.heal()
        self._begin_faults()
        for disk in self._disks.values():
            disk.is_full = False
        self._disks.clear()
        try:
            # The controller first, as it would elect new leaders for each stopped broker.
            closed: list[BaseException | None] = []
            if controller is not None:
                closed += await asyncio.gather(
                    self._on_controllers_loop(controller.close()), return_exceptions=True
                )
            closed += await asyncio.gather(
                *(member.broker.close(hand_over=False) for member in members),
                return_exceptions=True,
            )
        finally:
            if temporary is not None:
                from shutil import rmtree

                rmtree(temporary, ignore_errors=True)
        errors = [error for error in closed if isinstance(error, BaseException)]
        for later in errors[1:]:
            _log.error("a node did not close cleanly", exc_info=later)
        if errors:
            raise errors[0]

    def _directory(self, name: str) -> Storage:
        if self._data is None and self._temporary is None:
            from tempfile import mkdtemp

            self._temporary = mkdtemp(prefix="trimtab-")
        disk = self._disks.get(name)
        if disk is None:
            disk = FaultyDisk(self._path(name), durable=self._temporary is None)
            self._disks[name] = disk
        return disk.mount(files_per_storage(self._count + 1))  # and the controller's

    def _path(self, name: str) -> str:
        """The path of a node's data; only its name if `storage` decides the path."""
        parent = self._temporary if self._data is None else Path(self._data).absolute()
        return name if parent is None else str(Path(parent) / name)

    def _own_options(self, broker_id: int, name: str) -> dict[str, object]:
        own: dict[str, object] = {
            "node.id": broker_id,
            "broker.id": broker_id,
            "log.dirs": (self._path(name),),  # a tuple, as text would be split at commas
        }
        rack = self._racks[broker_id]
        if rack is not None:
            own["broker.rack"] = rack
        return own

    def _refuse_missing_brokers(self, controller: ControllerNode) -> None:
        known = sorted(controller.controller.image.brokers)
        if known and known[-1] >= self._count:
            raise UsageError(
                f"brokers={self._count}: the data are those of {known[-1] + 1} brokers; start as "
                "many, or choose another data directory"
            )


class _Member(NamedTuple):
    broker: Broker
    storage: Storage
    address: tuple[str, int]


def _storage_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


async def _go_on(change: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
    """Change a cluster, to the end even if Ctrl-C interrupts the wait for it."""
    await asyncio.shield(asyncio.ensure_future(change(*args)))


async def _run_all(each: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them concurrently; if one fails, cancel the others and wait for them to end."""
    tasks = [asyncio.ensure_future(one) for one in each]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _choose_ports(ports: int | Sequence[int] | None, brokers: int) -> list[int]:
    if ports is None:
        return [0] * brokers
    if isinstance(ports, str) or not isinstance(ports, int | Sequence):
        raise UsageError(f"ports={ports!r}: give the first port, or a list of them")
    chosen = [ports + number for number in range(brokers)] if isinstance(ports, int) else ports
    if len(chosen) != brokers:
        raise UsageError(
            f"ports={list(chosen)!r}: {len(chosen)} ports for {brokers} brokers; name one each"
        )
    return [checked_integer("port", port, 0, 65535) for port in chosen]
