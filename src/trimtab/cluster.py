"""A whole cluster inside this process: brokers on loopback ports, and their controller.

    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        Producer(bootstrap_servers=cluster.bootstrap_servers)

The nodes are those of `trimtab cluster up`, which gives each a process of its own; they speak to each
other by the same requests.

On disk, below `data`:

    controller/             the cluster's id, and its journal `__cluster_metadata-0`
    broker-0/ broker-1/ …   a directory per broker, laid out as Kafka's
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import TracebackType

from trimtab import config as options
from trimtab.broker.broker import Broker
from trimtab.controller.node import ControllerNode
from trimtab.errors import UsageError
from trimtab.runtime.clock import wall_clock_ms
from trimtab.runtime.files import DirectoryStorage
from trimtab.runtime.loop_thread import LoopThread
from trimtab.storage.storage import Storage

CONTROLLER_ID = 3000
"""The controller's node id, out of the way of the brokers'."""

_META = "meta.properties"
_CLUSTER_ID = "cluster.id="
_OWN_OPTIONS = (
    "advertised.listeners",
    "broker.id",
    "broker.rack",
    "listeners",
    "log.dirs",
    "node.id",
)

_log = logging.getLogger(__name__)


class Cluster:
    """Brokers and a controller in this process.

    As a context manager it is up inside the block: `with` runs it on a thread of its own,
    `async with` on the running loop. `start` and `stop` do what `with` does.

    Args:
        brokers: how many; their ids are 0, 1, ….
        racks: a rack per broker; None for none.
        data: the directory to keep the data in, which a later cluster finds again. None keeps them
            in a temporary one that is removed at the end.
        ports: a port per broker, or the first of consecutive ones; None takes free ones.
        host: the address to listen on and to advertise.
        config: broker options (`trimtab.config.BROKER`), dotted or in snake case, the same for all.
        storage: makes the storage of `controller` and `broker-<id>`, instead of `data`.
        now_ms: wall time in milliseconds.
        random: topic ids, placement and other choices; give a seeded one to have them repeated.

    Raises:
        UsageError: an argument does not fit the others.
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
        storage: Callable[[str], Storage] | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        random: Random | None = None,
    ) -> None:
        if brokers < 1:
            raise UsageError(f"brokers={brokers}: a cluster has at least one")
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
        self._host = host
        self._options = options.read_given(options.BROKER, config or {})
        for name in _OWN_OPTIONS:
            if name in self._options:
                raise UsageError(
                    f"broker option {name} differs from broker to broker; a cluster sets it from "
                    "its own arguments"
                )
        self._storage = storage
        self._now_ms = now_ms
        self._random = Random() if random is None else random
        self._temporary: str | None = None
        self._thread: LoopThread | None = None
        self._controller: ControllerNode | None = None
        self._brokers: list[Broker] = []
        self._addresses: list[tuple[str, int]] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker that is up, in the order of their ids."""
        return list(self._addresses)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of the brokers that are up, as clients take it."""
        return ",".join(f"{host}:{port}" for host, port in self._addresses)

    def slow(self, broker: int = 0, produce_ms: float = 20) -> None:
        """Have a broker answer every produce request so many milliseconds late, 0 for on time.

        One request at a time per connection, as in KIP-794's measurements.

        Raises:
            UsageError: no such broker is up, or a negative time.
        """
        if not 0 <= broker < len(self._brokers):
            raise UsageError(f"broker={broker}: {len(self._brokers)} brokers are up, from 0 on")
        self._brokers[broker].listener.faults.slow(produce_ms)

    # The synchronous face

    def start(self) -> None:
        """Bring the cluster up on a thread of its own; on return it answers.

        Raises:
            OSError: a port is taken.
            StorageError: the disk failed.
            UsageError: it is up already, or the data are in use or another cluster's.
        """
        self._refuse_running()
        thread = LoopThread("trimtab-cluster")
        try:
            thread.run(self._open())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Take it down cleanly; temporary data are removed. Does nothing if it is not up.

        Raises:
            StorageError: the disk failed; the next start recovers.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.run(self._close())
        finally:
            thread.stop()

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # The asynchronous face

    async def __aenter__(self) -> Cluster:
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
        if self._brokers:
            raise UsageError(f"the cluster is up already at {self.bootstrap_servers}")

    async def _open(self) -> None:
        try:
            await self._start_all()
        except BaseException:
            await self._close()
            raise

    async def _start_all(self) -> None:
        make_storage = self._storage or self._make_directories()
        storage = make_storage("controller")
        cluster_id = identify(storage, self._random)
        self._controller = controller = ControllerNode(
            CONTROLLER_ID, cluster_id, storage, self._options, self._now_ms, self._random
        )
        self._refuse_missing_brokers(controller)
        address = self._host, await controller.listen(self._host, 0)
        await controller.start()
        for broker_id, port in enumerate(self._ports):
            name = f"broker-{broker_id}"
            broker = Broker(
                broker_id,
                cluster_id,
                make_storage(name),
                address,
                {**self._options, **self._own_options(broker_id, name)},
                self._now_ms,
                self._random,
            )
            self._brokers.append(broker)
            self._addresses.append((self._host, await broker.bind(self._host, port)))
        await asyncio.gather(
            *(
                broker.start(*bound)
                for broker, bound in zip(self._brokers, self._addresses, strict=True)
            )
        )
        everything = controller.controller.journal.end_offset
        await asyncio.gather(*(broker.metadata.reach(everything) for broker in self._brokers))

    async def _close(self) -> None:
        brokers, self._brokers = self._brokers, []
        self._addresses = []
        # Nobody is left to take over what one of them leads.
        closed = await asyncio.gather(
            *(broker.close(hand_over=False) for broker in brokers), return_exceptions=True
        )
        if self._controller is not None:
            await self._controller.close()
            self._controller = None
        if self._temporary is not None:
            from shutil import rmtree

            rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        errors = [error for error in closed if isinstance(error, BaseException)]
        for later in errors[1:]:
            _log.error("a broker did not close cleanly", exc_info=later)
        if errors:
            raise errors[0]

    def _make_directories(self) -> Callable[[str], Storage]:
        if self._data is not None:
            root = Path(self._data)
            return lambda name: DirectoryStorage(root / name)
        from tempfile import mkdtemp

        temporary = self._temporary = mkdtemp(prefix="trimtab-")
        return lambda name: DirectoryStorage(Path(temporary) / name, durable=False)

    def _own_options(self, broker_id: int, name: str) -> dict[str, object]:
        own: dict[str, object] = {"node.id": broker_id, "broker.id": broker_id, "log.dirs": name}
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


def _choose_ports(ports: int | Sequence[int] | None, brokers: int) -> list[int]:
    if ports is None:
        return [0] * brokers
    chosen = [ports + number for number in range(brokers)] if isinstance(ports, int) else ports
    if len(chosen) != brokers:
        raise UsageError(
            f"ports={list(chosen)!r}: {len(chosen)} ports for {brokers} brokers; name one each"
        )
    for port in chosen:
        if not 0 <= port < 65536:
            raise UsageError(f"ports={ports!r}: {port} is no port; choose from 0 to 65535")
    return list(chosen)


def identify(storage: Storage, random: Random) -> str:
    """The id of the cluster whose data these are; a new one if there are none."""
    for line in (storage.read_file(_META) or b"").decode("ascii", "replace").splitlines():
        if line.startswith(_CLUSTER_ID):
            return line.removeprefix(_CLUSTER_ID)
    while True:
        cluster_id = urlsafe_b64encode(random.randbytes(16)).decode("ascii").rstrip("=")
        if not cluster_id.startswith("-"):  # command lines would take it for an option
            break
    storage.write_file(_META, f"version=1\n{_CLUSTER_ID}{cluster_id}\n".encode("ascii"))
    return cluster_id
