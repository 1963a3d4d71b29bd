"""Run a Kafka-protocol cluster, for any Kafka client: a process per broker, and one controller.

`cluster up` listens on consecutive ports of the loopback interface, prints one line
`ready HOST:PORT,HOST:PORT,…` on standard output once every broker answers, and runs until SIGTERM
or Ctrl-C. A process that ends by itself is started again. Each logs to `logs/<node>.log` in the
data directory, which without --data is temporary; a log of 10 MiB is put aside, and five are kept.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from trimtab.cli.options import read_pairs
from trimtab.errors import Unavailable, UsageError

TYPE_CHECKING = False  # as typing's; this process starts others, and is out of their way
if TYPE_CHECKING:
    from trimtab.runtime.supervisor import Program

EXAMPLES = """\
  trimtab cluster up
  trimtab cluster up --brokers 3 --racks a,b,c --port 9092 --data ./kafka-data
  trimtab cluster up --brokers 3 --slow 0=20 --config num.partitions=6
                                 broker 0 answers every produce request 20 ms late, one at a
                                 time per connection: the test setup of KIP-794
"""

_LOOPBACK = "127.0.0.1"
_LOGS = "logs"
_ASK_AGAIN_S = 0.01
_ANSWER_S = 1.0
_QUIET_S = 3600.0
_METADATA_OF_NO_TOPIC = struct.pack(">ihhihi", 14, 3, 1, 0, -1, 0)
"""A whole request, version 1; the answer has the number of brokers in its bytes 8 to 12."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up")
    up = verbs.add_parser(
        "up",
        help="start a cluster and keep it running",
        description=__doc__,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    up.add_argument("--brokers", type=int, default=1, metavar="N", help="how many (default: 1)")
    up.add_argument(
        "--racks", metavar="RACK,…", help="the brokers' racks, in order: one for each broker"
    )
    up.add_argument(
        "--host", default=_LOOPBACK, help=f"listen and advertise (default: {_LOOPBACK})"
    )
    up.add_argument(
        "--port",
        type=int,
        default=9092,
        help="broker 0's; the others have the next ones; 0: any free ones (default: 9092)",
    )
    up.add_argument("--data", metavar="DIR", help="where the data are kept (default: temporary)")
    up.add_argument(
        "--slow",
        nargs="+",
        action="extend",
        default=[],
        metavar="BROKER=MS",
        help="answer each produce request so many milliseconds late",
    )
    up.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="options of all brokers and of the controller, such as num.partitions=6",
    )
    up.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="the controller answers GET /metrics for Prometheus there",
    )


def run(arguments: argparse.Namespace) -> int:
    racks = choose_racks(arguments.brokers, arguments.racks)
    slow = read_delays(arguments.slow, arguments.brokers)
    config = read_config(arguments.config)
    with ExitStack() as stack:
        ports = stack.enter_context(
            hold_ports(arguments.host, choose_ports(arguments.port, arguments.brokers))
        )
        (controller,) = stack.enter_context(hold_ports(_LOOPBACK, [0]))
        data = stack.enter_context(open_data(arguments.data, arguments.brokers))
        programs = list_programs(
            arguments.host,
            controller,
            ports,
            racks,
            slow,
            data,
            config,
            arguments.data is None,
            arguments.metrics_port,
        )
        _supervise(programs, f"{data}/{_LOGS}", arguments.brokers)
    return 0


def list_programs(
    host: str,
    controller_port: int,
    ports: Sequence[int],
    racks: Sequence[str] | None,
    slow: dict[int, float],
    data: str,
    config: Sequence[str],
    temporary: bool,
    metrics_port: int | None = None,
) -> list[Program]:
    """The processes of a cluster: the controller, then its brokers, which end after it: it would
    look for new leaders for the partitions of each that ends."""
    from trimtab.runtime.supervisor import Program

    # As for this process: what lies in the working directory is no part of Python, or is.
    python = [sys.executable, *(() if os.getcwd() in sys.path else ("-P",)), "-m", "trimtab"]
    common = [
        "--stop-at-eof",
        *(["--no-fsync"] if temporary else []),
        *(["--config", *config] if config else []),
    ]
    programs = [
        Program(
            "controller",
            [
                *(*python, "controller", "--host", _LOOPBACK, "--port", str(controller_port)),
                *("--data", f"{data}/controller"),
                *("--log-file", f"{data}/{_LOGS}/controller.log"),
                *(() if metrics_port is None else ("--metrics-port", str(metrics_port))),
                *common,
            ],
        )
    ]
    for broker, port in enumerate(ports):
        name = f"broker-{broker}"
        words = [
            *(*python, "broker", "--id", str(broker)),
            *("--controller", f"{_LOOPBACK}:{controller_port}"),
            *("--host", host, "--port", str(port), "--data", f"{data}/{name}"),
            *("--log-file", f"{data}/{_LOGS}/{name}.log"),
            *(("--slow", f"{slow[broker]:g}") if broker in slow else ()),
            *(("--rack", racks[broker]) if racks else ()),
            *common,
        ]
        programs.append(Program(name, words, rank=1))
    return programs


def _supervise(programs: Sequence[Program], logs: str, brokers: int) -> None:
    """Keep the cluster up until SIGTERM or SIGINT.

    Raises:
        Unavailable: it could not be started.
    """
    from trimtab.runtime.supervisor import Signals, Supervisor

    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        supervisor = Supervisor(programs, logs, _say)
        supervisor.watch(signals.descriptor)
        try:
            supervisor.start()
            is_ready = False
            while not signals.count:
                if not is_ready and supervisor.serves:
                    is_ready = _print_if_ready(supervisor.said, brokers)
                supervisor.turn(_QUIET_S if is_ready or not supervisor.serves else _ASK_AGAIN_S)
            _say("stopping")
        finally:
            signals.clear()
            supervisor.stop(at_once=lambda: signals.count > 1)


def _print_if_ready(said: dict[str, str], brokers: int) -> bool:
    addresses = [
        said[f"broker-{broker}"].removeprefix("ready ").strip() for broker in range(brokers)
    ]
    if not all(answers(address, brokers) for address in addresses):
        return False
    print(f"ready {','.join(addresses)}", flush=True)
    return True


def answers(address: str, brokers: int) -> bool:
    """Whether the broker there answers, and knows of so many."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S) as connection:
            connection.sendall(_METADATA_OF_NO_TOPIC)
            head = connection.makefile("rb").read(12)
    except OSError:
        return False
    return len(head) == 12 and int.from_bytes(head[8:], "big") >= brokers


@contextmanager
def hold_ports(host: str, ports: Sequence[int]) -> Iterator[list[int]]:
    """Ports that nobody else has or gets, for processes to listen on; free ones for 0.

    On Linux a socket that does not listen keeps a port from being given away, also as the near end
    of some connection while the process that listens is started again; elsewhere it would keep the
    process from listening.

    Raises:
        Unavailable: one is taken.
    """
    with ExitStack() as held:
        taken = []
        for port in ports:
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                holder = held.enter_context(socket.socket(family, kind, protocol))
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(address)
            except OSError as error:
                raise Unavailable(
                    f"no cluster on {host}, port {port}: {error}; if the port is taken name "
                    "another --port, or 0 for any"
                ) from error
            taken.append(int(holder.getsockname()[1]))
        if sys.platform != "linux":
            held.close()
        yield taken


@contextmanager
def open_data(given: str | None, brokers: int) -> Iterator[str]:
    """The data directory, with one for logs in it; if none is given a temporary one, of which the
    logs are left if the cluster could not be started.

    Raises:
        Unavailable: it cannot be made.
        UsageError: it holds the data of more brokers, or of brokers without their controller.
    """
    if given is not None:
        data = os.path.abspath(given)
        refuse_missing_brokers(data, brokers)
        refuse_lost_controller(data)
        try:
            os.makedirs(data, 0o700, exist_ok=True)
            os.makedirs(f"{data}/{_LOGS}", 0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"no data in {data}: {error.strerror}; name another --data"
            ) from error
        yield data
        return
    from trimtab.runtime.temporary import temporary_directory

    with temporary_directory() as temporary:
        os.mkdir(f"{temporary.path}/{_LOGS}", 0o700)
        try:
            yield temporary.path
        except Unavailable:
            temporary.kept = (_LOGS,)
            raise


def refuse_missing_brokers(data: str, brokers: int) -> None:
    """
    Raises:
        UsageError: the directory holds the data of a broker that would not be started.
    """
    names = os.listdir(data) if os.path.isdir(data) else []
    known = [
        int(name.removeprefix("broker-"))
        for name in names
        if name.startswith("broker-") and name.removeprefix("broker-").isdecimal()
    ]
    if known and max(known) >= brokers:
        raise UsageError(
            f"--brokers {brokers}: {data} holds the data of {max(known) + 1} brokers; start as "
            "many, or choose another data directory"
        )


def refuse_lost_controller(data: str) -> None:
    """
    Raises:
        UsageError: the directory holds data of brokers, and none of their controller.
    """
    names = os.listdir(data) if os.path.isdir(data) else []
    is_used = any(
        name.startswith("broker-") and os.path.exists(f"{data}/{name}/meta.properties")
        for name in names
    )
    if is_used and not os.path.exists(f"{data}/controller/meta.properties"):
        raise UsageError(
            f"{data} holds the data of brokers, and {data}/controller is lost: put it back, or "
            f"rebuild it with `trimtab recover --data {data}`"
        )


def choose_ports(first: int, brokers: int) -> list[int]:
    """Consecutive ports, or 0 for each broker.

    Raises:
        UsageError: there are not so many.
    """
    ports = [first + broker if first else 0 for broker in range(brokers)]
    if first < 0 or ports[-1] > 65535:
        raise UsageError(f"--port {first}: {brokers} ports from there on are not within 0 to 65535")
    return ports


def read_config(words: Sequence[str]) -> list[str]:
    """`--config` as every node is handed it, checked.

    Raises:
        UsageError: an option is unknown or does not fit, or differs from node to node.
    """
    if not words:
        return []
    from trimtab.config import BROKER, read_given, write
    from trimtab.config.node import OWN_OPTIONS

    given = read_given(BROKER, read_pairs(words))
    for name in OWN_OPTIONS:
        if name in given:
            raise UsageError(
                f"broker option {name} differs from broker to broker; a cluster sets it from "
                "its own options"
            )
    return [f"{name}={write(value)}" for name, value in given.items()]


def choose_racks(brokers: int, text: str | None) -> list[str] | None:
    """`a,b,c` as a list of one rack per broker.

    Raises:
        UsageError: not as many racks as brokers, or no brokers.
    """
    if brokers < 1:
        raise UsageError(f"--brokers {brokers}: a cluster has at least one")
    if text is None:
        return None
    racks = text.split(",")
    if len(racks) != brokers:
        raise UsageError(f"--racks {text}: {len(racks)} racks for {brokers} brokers; name one each")
    return racks


def read_delays(words: Sequence[str], brokers: int) -> dict[int, float]:
    """`["0=20"]` as milliseconds by broker.

    Raises:
        UsageError: no such broker, or no number.
    """
    delays = {}
    for broker, delay in read_pairs(words).items():
        if not broker.isdecimal() or int(broker) >= brokers:
            raise UsageError(f"--slow {broker}={delay}: brokers are 0 to {brokers - 1}")
        try:
            delays[int(broker)] = float(delay)
        except ValueError:
            raise UsageError(f"--slow {broker}={delay}: write milliseconds, as 0=20") from None
    return delays


def _say(text: str) -> None:
    print(f"trimtab cluster: {text}", file=sys.stderr, flush=True)
