"""What `trimtab broker` and `trimtab controller` share: options, logging, signals, shutdown."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar

from trimtab.cli import FAILED, INTERRUPTED
from trimtab.cli.options import add_options, read_pairs, read_properties
from trimtab.cluster.config import BROKER
from trimtab.cluster.config.node import (
    ANY_HOST,
    LOOPBACK,
    Address,
    Given,
    NodeConfig,
    format_address,
    read_node,
)
from trimtab.cluster.disk.descriptors import share_out_descriptors
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.disk.temporary import temporary_directory
from trimtab.cluster.processes.log_file import RotatingLog
from trimtab.cluster.server.open_host import INSECURE, refuse_open_host
from trimtab.cluster.server.secret_file import SECRET_FILE
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.threads.event_loop import new_event_loop

if TYPE_CHECKING:
    from trimtab.cluster.broker.broker import Broker
    from trimtab.cluster.controller.node import ControllerNode
    from trimtab.cluster.processes.metrics_server import Measured, MetricsServer

_ORPHAN_SECONDS = 20.0
"""A node whose supervisor has ended, and so cannot kill it, may take this long to shut down."""

_log = logging.getLogger(__name__)

N = TypeVar("N", "Broker", "ControllerNode")


class NodeProcess(ABC, Generic[N]):
    """A node that runs in a process of its own.

    Args:
        connections: how many the limit on file descriptors allows.

    Attributes:
        served: the node; None until `start` has made it.
        metrics: the server of its metrics, if it has one.
    """

    def __init__(
        self, arguments: argparse.Namespace, node: NodeConfig, storage: Storage, connections: int
    ) -> None:
        self.arguments, self.node, self.storage = arguments, node, storage
        self.connections = connections
        self.served: N | None = None
        self.metrics: MetricsServer | None = None

    @abstractmethod
    async def start(self) -> Address:
        """Join the cluster and serve requests; returns the advertised address."""

    @property
    def secret_file(self) -> str:
        """The file with the cluster's secret."""
        return self.arguments.cluster_secret_file or f"{self.node.directory}/{SECRET_FILE}"

    async def listen(
        self,
        served: N,
        bind: Callable[[str, int], Awaitable[int]],
        measured: Callable[[ModuleType], Measured],
    ) -> Address:
        """Serve the node's metrics, and have it bind its address; returns the advertised address.

        Args:
            measured: as of `serve_metrics`.

        Raises:
            Unavailable: the address, or the port for metrics, is in use.
            UsageError: as `serve_metrics`.
        """
        self.served = served
        served.listener.capacity = self.connections
        self.metrics = await serve_metrics(measured, self.node, self.arguments)
        try:
            port = await bind(*self.node.listen)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {format_address(*self.node.listen)}: {error}; if the port is in "
                "use, name another --port, or 0 for any free one"
            ) from error
        return advertise(self.node, port)

    async def fail(self) -> None:
        """Return when the node has failed for good; the reason is in the log."""
        assert self.served is not None
        await self.served.failed.wait()

    async def close(self, hand_over: bool) -> None:
        """Shut down cleanly, also when `start` has not finished.

        Args:
            hand_over: whether the other nodes keep running, so that a broker's leaderships go to
                them first.
        """
        if self.metrics is not None:
            self.metrics.close()
        if self.served is not None:
            await self.stop(self.served, hand_over)

    @abstractmethod
    async def stop(self, served: N, hand_over: bool) -> None:
        """Shut the node down."""


def add_node_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options that brokers and controllers share."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.properties",
        help="a file of Kafka's options, one NAME=VALUE a line; the command line overrides it",
    )
    options = {
        "--id --node-id N": "the node's id (node.id)",
        "--host HOST": f"the address to listen on and advertise (default: {LOOPBACK})",
        "--port PORT": f"the port to listen on; 0: any free port (default: {port})",
        "--data DIR": "data directory (log.dirs; default: a temporary one, deleted at the end)",
        "--config NAME=VALUE …": "other broker or controller options, such as num.partitions=6",
        "--cluster-secret-file FILE": "the file with the cluster's secret, by which its nodes "
        f"know each other (default: {SECRET_FILE} in the data directory; a controller makes it at "
        "its first start)",
        "--insecure": INSECURE,
        "--log-file FILE": "log to this file instead of standard error; it is rotated at 10 MiB, "
        "and the last five files are kept",
        "--metrics-port PORT": "serve Prometheus metrics at /metrics on this port; 0: any free "
        "port (default: none; see docs/metrics.md)",
        "--metrics-host HOST": "the address to serve metrics on (default: that of --host)",
        "--no-fsync": "never call fsync: a crash of the machine may then lose data",
        "--stop-at-eof": "end when standard input ends, because the process that started this one "
        "has ended",
    }
    add_options(parser, options)


def read_node_options(
    arguments: argparse.Namespace, role: str, flags: Mapping[str, object]
) -> NodeConfig:
    """The node's settings. Flags override --config, which overrides the file.

    Unknown options in the file are ignored with a warning, as in Kafka: they may belong to a
    plugin.

    Args:
        flags: values of the role's own flags, by `--flag option.name`.

    Raises:
        UsageError: an option of the command line is unknown, or any option has an invalid value
            or names a feature that trimtab lacks.
    """
    given: dict[str, Given] = {}
    ignored = []
    if arguments.file is not None:
        for name, (value, line) in read_properties(arguments.file).items():
            place = f"{arguments.file}, line {line}"
            if BROKER.knows(name):
                given[name] = Given(value, place)
            else:
                near = BROKER.nearest(name)
                hint = f"; did you mean {near}?" if near else ""
                ignored.append(f"{place}: {name}{hint}")
    for name, value in read_pairs(arguments.config).items():
        given[name.replace("_", ".")] = Given(value, "--config")
    for flag, value in {"--id node.id": arguments.id, **flags}.items():
        place, name = flag.split()
        if value is not None:
            given[name] = Given(str(value), place)
    if arguments.id is not None:
        given.pop("broker.id", None)
    node = read_node(role, given)._replace(ignored=tuple(ignored))
    host = node.listen[0] if arguments.host is None else arguments.host
    port = node.listen[1] if arguments.port is None else arguments.port
    if not 0 <= port < 65536:
        raise UsageError(f"--port {port}: choose from 0 to 65535")
    if (host, port) != node.listen:
        node.options.pop("listeners", None)
    node = node._replace(listen=(host, port))
    refuse_open_host(host, arguments.insecure)
    directory = arguments.data or node.directory
    return node if directory is None else _put(node, os.path.abspath(directory))


def _put(node: NodeConfig, directory: str) -> NodeConfig:
    """The node with this data directory."""
    # Set as a list: in an option's text, a comma in the path would separate two directories.
    return node._replace(directory=directory, options={**node.options, "log.dirs": (directory,)})


def advertise(node: NodeConfig, port: int) -> Address:
    """The address that a node listening on this port advertises."""
    if node.advertised is not None:
        host, advertised = node.advertised
        return host, advertised or port
    host = node.listen[0]
    if host in (ANY_HOST, "::"):
        from socket import getfqdn

        host = getfqdn()
        _log.info("listening on every address, advertising host=%s", host)
    return host, port


async def serve_metrics(
    measured: Callable[[ModuleType], Measured], node: NodeConfig, arguments: argparse.Namespace
) -> MetricsServer | None:
    """Serve a node's metrics for Prometheus; None if no port is given.

    Args:
        measured: what to measure, of the module `trimtab.cluster.processes.metrics_server`.

    Raises:
        Unavailable: the port is in use.
        UsageError: the package prometheus_client is missing, or there is no such port.
    """
    port = arguments.metrics_port
    if port is None:
        return None
    host = arguments.metrics_host or node.listen[0]
    if not 0 <= port < 65536:
        raise UsageError(f"--metrics-port {port}: choose from 0 to 65535")
    try:
        from trimtab.cluster.processes import metrics_server
    except ImportError as error:
        raise UsageError(
            f"--metrics-port needs prometheus_client: pip install prometheus_client ({error})"
        ) from None
    server = metrics_server.MetricsServer(measured(metrics_server))
    try:
        await server.listen(host, port)
    except OSError as error:
        server.close()
        raise Unavailable(
            f"cannot serve metrics on {format_address(host, port)}: {error}; name another "
            "--metrics-port, or 0 for any free one"
        ) from error
    _log.info("serving metrics address=http://%s/metrics", format_address(host, server.port))
    return server


def run_node(arguments: argparse.Namespace, node: NodeConfig, process: type[NodeProcess[N]]) -> int:
    """Run a node until a signal or the end of standard input; returns the command's exit code.

    Raises:
        Unavailable: the address is in use.
        StorageError: the disk failed.
        UsageError: the data directory is in use, or belongs to another node or cluster; or
            standard input cannot be watched for its end.
    """
    logging.basicConfig(
        handlers=[_open_log(arguments.log_file)],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if arguments.insecure:
        _log.warning("--insecure: anyone who can connect to %s may do anything", node.listen[0])
    for each in node.ignored:
        _log.warning("ignoring unknown option %s", each)
    if node.directory is not None:
        return _run(arguments, node, process, durable=not arguments.no_fsync)
    with temporary_directory() as temporary:
        _log.info("temporary data directory=%s; give --data to keep the data", temporary.path)
        return _run(arguments, _put(node, temporary.path), process, durable=False)


def _open_log(path: str | None) -> logging.Handler:
    if path is None:
        return logging.StreamHandler(sys.stderr)
    try:
        return RotatingLog(path)
    except OSError as error:
        raise Unavailable(
            f"--log-file {path}: {error.strerror}; name a file that can be written"
        ) from error


def _run(
    arguments: argparse.Namespace, node: NodeConfig, process: type[NodeProcess[N]], durable: bool
) -> int:
    assert node.directory is not None
    shares = share_out_descriptors()
    storage = DirectoryStorage(node.directory, max_open_files=shares.files, durable=durable)
    running = process(arguments, node, storage, shares.connections)
    # A node with tens of thousands of partitions holds millions of objects, none in cycles.
    # Python's default, a collection after every 700 new objects, would take half of the CPU time.
    # A collection of millions of objects would pause all requests: the second generation is
    # collected at 100,000.
    gc.set_threshold(20_000, 5, 1_000)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_live(running, arguments.stop_at_eof))
    except asyncio.CancelledError:
        return INTERRUPTED


class _Shutdown:
    """Waits for a signal, or the end of standard input, to end the process.

    Attributes:
        requested: set by the first signal, or by the end of standard input. A second signal
            cancels the main task.
        hand_over: whether the other nodes keep running.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hand_over = True
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._handle_signal, number)

    def watch_input(self) -> None:
        """Also shut down when standard input ends.

        Raises:
            UsageError: standard input is a file, or closed.
        """
        try:
            self._loop.add_reader(sys.stdin.fileno(), self._read_input)
        except (AttributeError, OSError) as error:
            raise UsageError(
                f"--stop-at-eof: standard input cannot be watched: {error}; make it a pipe"
            ) from error

    def _handle_signal(self, number: signal.Signals) -> None:
        if not self.requested.is_set():
            _log.info("shutting down signal=%s", number.name)
            self.requested.set()
        elif self._main is not None:
            _log.warning("ending at once signal=%s", number.name)
            self._main.cancel()

    def _read_input(self) -> None:
        descriptor = sys.stdin.fileno()
        if os.read(descriptor, 4096):
            return
        self._loop.remove_reader(descriptor)
        if not self.requested.is_set():
            _log.info("shutting down with the cluster: standard input has ended")
            self.hand_over = False
            self.requested.set()
        self._loop.call_later(_ORPHAN_SECONDS, os._exit, 1)


async def _live(process: NodeProcess[N], stop_at_eof: bool) -> int:
    shutdown = _Shutdown()
    if stop_at_eof:
        shutdown.watch_input()
    requested = asyncio.ensure_future(shutdown.requested.wait())
    serving = asyncio.ensure_future(_serve(process))
    try:
        await asyncio.wait((requested, serving), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            return 0
        serving.result()
        return FAILED
    finally:
        for task in (requested, serving):
            task.cancel()
        await asyncio.gather(requested, serving, return_exceptions=True)
        await process.close(shutdown.hand_over)


async def _serve(process: NodeProcess[N]) -> None:
    """Start the node, print its address, and return when the node has failed."""
    print(f"ready {format_address(*await process.start())}", flush=True)
    await process.fail()
