"""What `trimtab broker` and `trimtab controller` share: options, logging, signals, shutdown."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from trimtab.cli import FAILED, INTERRUPTED
from trimtab.cli.options import add_list_option, read_pairs, read_properties
from trimtab.config import BROKER
from trimtab.config.node import ANY_HOST, LOOPBACK, Address, Given, Node, format_address, read_node
from trimtab.errors import Unavailable, UsageError
from trimtab.runtime.descriptors import share_out_descriptors
from trimtab.runtime.event_loop import new_event_loop
from trimtab.runtime.files import DirectoryStorage
from trimtab.runtime.log_file import RotatingLog
from trimtab.runtime.temporary import temporary_directory
from trimtab.storage.storage import Storage

if TYPE_CHECKING:
    from trimtab.runtime.metrics_server import Measured, MetricsServer

_ORPHAN_SECONDS = 20.0
"""A node whose supervisor has ended, and so cannot kill it, may take this long to shut down."""

_log = logging.getLogger(__name__)


class NodeProcess(Protocol):
    """A node that runs in a process of its own."""

    async def start(self) -> Address:
        """Join the cluster and serve requests; returns the advertised address."""

    async def fail(self) -> None:
        """Return when the node has failed for good; the reason is in the log."""

    async def close(self, hand_over: bool) -> None:
        """Shut down cleanly, also when `start` has not finished.

        Args:
            hand_over: whether the other nodes keep running, so that a broker's leaderships go to
                them first.
        """


def add_node_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options that brokers and controllers share."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.properties",
        help="a file of Kafka's options, one NAME=VALUE a line; the command line overrides it",
    )
    parser.add_argument("--id", "--node-id", type=int, metavar="N", help="the node's id (node.id)")
    parser.add_argument(
        "--host", help=f"the address to listen on and advertise (default: {LOOPBACK})"
    )
    parser.add_argument(
        "--port", type=int, help=f"the port to listen on; 0: any free port (default: {port})"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="data directory (log.dirs; default: a temporary one, deleted at the end)",
    )
    add_list_option(
        parser,
        "--config",
        metavar="NAME=VALUE",
        help="other broker or controller options, such as num.partitions=6",
    )
    parser.add_argument(
        "--log-file",
        metavar="FILE",
        help="log to this file instead of standard error; it is rotated at 10 MiB, and the last "
        "five files are kept",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics at /metrics on this port; 0: any free port (default: none; "
        "see docs/metrics.md)",
    )
    parser.add_argument(
        "--metrics-host",
        metavar="HOST",
        help="the address to serve metrics on (default: that of --host)",
    )
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="never call fsync: a crash of the machine may then lose data",
    )
    parser.add_argument(
        "--stop-at-eof",
        action="store_true",
        help="end when standard input ends, because the process that started this one has ended",
    )


def read_node_options(
    arguments: argparse.Namespace, role: str, flags: Mapping[str, object]
) -> Node:
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
    directory = arguments.data or node.directory
    return node if directory is None else _put(node, os.path.abspath(directory))


def _put(node: Node, directory: str) -> Node:
    """The node with this data directory."""
    # Set as a list: in an option's text, a comma in the path would separate two directories.
    return node._replace(directory=directory, options={**node.options, "log.dirs": (directory,)})


def advertise(node: Node, port: int) -> Address:
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


async def listen(node: Node, bind: Callable[[str, int], Awaitable[int]]) -> Address:
    """Have a node bind its address; returns the advertised address.

    Raises:
        Unavailable: the address is in use.
    """
    try:
        port = await bind(*node.listen)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {format_address(*node.listen)}: {error}; if the port is in use, "
            "name another --port, or 0 for any free one"
        ) from error
    return advertise(node, port)


async def serve_metrics(
    measured: Callable[[ModuleType], Measured], node: Node, arguments: argparse.Namespace
) -> MetricsServer | None:
    """Serve a node's metrics for Prometheus; None if no port is given.

    Args:
        measured: what to measure, of the module `trimtab.runtime.metrics_server`.

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
        from trimtab.runtime import metrics_server
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


def run_node(
    arguments: argparse.Namespace,
    node: Node,
    make_process: Callable[[Node, Storage, int], NodeProcess],
) -> int:
    """Run a node until a signal or the end of standard input; returns the command's exit code.

    Args:
        make_process: creates the node from its settings, its storage, and the number of
            connections that the limit on file descriptors allows.

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
    for each in node.ignored:
        _log.warning("ignoring unknown option %s", each)
    if node.directory is not None:
        return _run(arguments, node, make_process, durable=not arguments.no_fsync)
    with temporary_directory() as temporary:
        _log.info("temporary data directory=%s; give --data to keep the data", temporary.path)
        return _run(arguments, _put(node, temporary.path), make_process, durable=False)


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
    arguments: argparse.Namespace,
    node: Node,
    make_process: Callable[[Node, Storage, int], NodeProcess],
    durable: bool,
) -> int:
    assert node.directory is not None
    shares = share_out_descriptors()
    storage = DirectoryStorage(node.directory, max_open_files=shares.files, durable=durable)
    process = make_process(node, storage, shares.connections)
    # A node with tens of thousands of partitions holds millions of objects, none in cycles.
    # Python's default, a collection after every 700 new objects, would take half of the CPU time.
    # A collection of millions of objects would pause all requests: the second generation is
    # collected at 100,000.
    gc.set_threshold(20_000, 5, 1_000)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_live(process, arguments.stop_at_eof))
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


async def _live(process: NodeProcess, stop_at_eof: bool) -> int:
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


async def _serve(process: NodeProcess) -> None:
    """Start the node, print its address, and return when the node has failed."""
    print(f"ready {format_address(*await process.start())}", flush=True)
    await process.fail()
