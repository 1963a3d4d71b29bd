"""What `trimtab broker` and `trimtab controller` share: options, the log, signals and the end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from trimtab.cli import FAILED, INTERRUPTED
from trimtab.cli.options import read_pairs, read_properties
from trimtab.config import BROKER
from trimtab.config.node import (
    ANY_HOST,
    LOOPBACK,
    Address,
    Given,
    Node,
    format_address,
    read_node,
)
from trimtab.errors import Unavailable, UsageError
from trimtab.runtime.descriptors import share_out_descriptors
from trimtab.runtime.event_loop import new_event_loop
from trimtab.runtime.files import DirectoryStorage
from trimtab.runtime.log_file import RotatingLog
from trimtab.runtime.temporary import temporary_directory
from trimtab.storage.storage import Storage

_ORPHAN_SECONDS = 20.0
"""How long a node may take to end whose supervisor is gone, and cannot kill it any more."""

_log = logging.getLogger(__name__)


class NodeProcess(Protocol):
    """A node as a process runs it."""

    async def start(self) -> Address:
        """Join the cluster; on return it serves, at the address that others are told."""

    async def fail(self) -> None:
        """Return when it cannot go on; why is in the log."""

    async def close(self, hand_over: bool) -> None:
        """End in good order, however far it had come.

        Args:
            hand_over: whether the others go on.
        """


def add_node_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add what a node of either role can be given."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.properties",
        help="options under Kafka's names, one NAME=VALUE a line; what is given here is stronger",
    )
    parser.add_argument("--id", "--node-id", type=int, metavar="N", help="node.id")
    parser.add_argument("--host", help=f"listen and advertise (default: {LOOPBACK})")
    parser.add_argument("--port", type=int, help=f"0: any free one (default: {port})")
    parser.add_argument(
        "--data", metavar="DIR", help="log.dirs: where the data are kept (default: temporary)"
    )
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="further options, such as num.partitions=6",
    )
    parser.add_argument(
        "--log-file",
        metavar="FILE",
        help="log there instead of to standard error; at 10 MiB it is put aside, and five are kept",
    )
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="never force data to disk: for what need not outlive the machine",
    )
    parser.add_argument(
        "--stop-at-eof",
        action="store_true",
        help="end when standard input does: whoever started this process is gone",
    )


def read_node_options(
    arguments: argparse.Namespace, role: str, flags: Mapping[str, object]
) -> Node:
    """What the process is to be: the command line over --config over the file.

    Options of the file that nobody knows are ignored, as Kafka does: they may be a plugin's.

    Args:
        flags: values of the role's own flags, by `--flag option.name`.

    Raises:
        UsageError: an option of the command line is unknown, or one does not fit, or asks for what
            there is not.
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
    """The node with its data there."""
    # Not from the text of an option, of which commas would make several.
    return node._replace(directory=directory, options={**node.options, "log.dirs": (directory,)})


def advertise(node: Node, port: int) -> Address:
    """The address that others are told, of a node that listens on this port."""
    if node.advertised is not None:
        host, advertised = node.advertised
        return host, advertised or port
    host = node.listen[0]
    if host in (ANY_HOST, "::"):
        from socket import getfqdn

        host = getfqdn()
        _log.info("listens on every address, and is advertised as host=%s", host)
    return host, port


async def listen(node: Node, bind: Callable[[str, int], Awaitable[int]]) -> Address:
    """Have a node bind its address; the one that others are told.

    Raises:
        Unavailable: it is taken.
    """
    try:
        port = await bind(*node.listen)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {format_address(*node.listen)}: {error}; if the port is taken name "
            "another --port, or 0 for any"
        ) from error
    return advertise(node, port)


def run_node(
    arguments: argparse.Namespace,
    node: Node,
    make_process: Callable[[Node, Storage, int], NodeProcess],
) -> int:
    """Run a node until it is told to end; the command's exit code.

    Args:
        make_process: makes the node, with its storage and the number of connections that there are
            descriptors for.

    Raises:
        Unavailable: its address is taken.
        StorageError: the disk failed.
        UsageError: its data are in use, or belong to another node or cluster; standard input is
            none that ends.
    """
    logging.basicConfig(
        handlers=[_open_log(arguments.log_file)],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for each in node.ignored:
        _log.warning("ignoring an unknown option %s", each)
    if node.directory is not None:
        return _run(arguments, node, make_process, durable=not arguments.no_fsync)
    with temporary_directory() as temporary:
        _log.info("data are temporary directory=%s; --data keeps them", temporary.path)
        return _run(arguments, _put(node, temporary.path), make_process, durable=False)


def _open_log(path: str | None) -> logging.Handler:
    if path is None:
        return logging.StreamHandler(sys.stderr)
    try:
        return RotatingLog(path)
    except OSError as error:
        raise Unavailable(
            f"--log-file {path}: {error.strerror}; name one that can be written"
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
    # A node with tens of thousands of partitions holds millions of objects, in no cycles: looking
    # for some at every 700 new ones, as Python does unasked, takes half of the time. Looking at
    # millions at once would hold up everybody: the second round has 100,000.
    gc.set_threshold(20_000, 5, 1_000)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_live(process, arguments.stop_at_eof))
    except asyncio.CancelledError:
        return INTERRUPTED


class _Ending:
    """Hears that the process is to end.

    Attributes:
        asked: set by the first signal, or the end of standard input. A second signal cancels what
            still goes on.
        hand_over: whether the other nodes go on.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hand_over = True
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._hear, number)

    def watch_input(self) -> None:
        """End when standard input does, too.

        Raises:
            UsageError: it is a file, or closed.
        """
        try:
            self._loop.add_reader(sys.stdin.fileno(), self._read_input)
        except (AttributeError, OSError) as error:
            raise UsageError(
                f"--stop-at-eof: standard input cannot be watched: {error}; make it a pipe"
            ) from error

    def _hear(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            _log.info("ends signal=%s", number.name)
            self.asked.set()
        elif self._main is not None:
            _log.warning("ends at once signal=%s", number.name)
            self._main.cancel()

    def _read_input(self) -> None:
        descriptor = sys.stdin.fileno()
        if os.read(descriptor, 4096):
            return
        self._loop.remove_reader(descriptor)
        if not self.asked.is_set():
            _log.info("ends, and so does the cluster: standard input has ended")
            self.hand_over = False
            self.asked.set()
        self._loop.call_later(_ORPHAN_SECONDS, os._exit, 1)


async def _live(process: NodeProcess, stop_at_eof: bool) -> int:
    ending = _Ending()
    if stop_at_eof:
        ending.watch_input()
    asked = asyncio.ensure_future(ending.asked.wait())
    serving = asyncio.ensure_future(_serve(process))
    try:
        await asyncio.wait((asked, serving), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            return 0
        serving.result()
        return FAILED
    finally:
        for task in (asked, serving):
            task.cancel()
        await asyncio.gather(asked, serving, return_exceptions=True)
        await process.close(ending.hand_over)


async def _serve(process: NodeProcess) -> None:
    """Return when it cannot go on."""
    print(f"ready {format_address(*await process.start())}", flush=True)
    await process.fail()
