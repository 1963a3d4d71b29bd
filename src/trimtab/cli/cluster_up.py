"""Run a Kafka-protocol cluster; show the id and the brokers of one.

`up` runs a process for each broker, and one for the controller. The brokers listen on consecutive
ports of the loopback interface. When all of them answer, one line `ready HOST:PORT,HOST:PORT,…` is
printed on standard output. The cluster runs until SIGTERM or Ctrl-C; a process that ends by itself
is started again. Each process logs to `logs/<node>.log` in the data directory. A log file is
rotated at 10 MiB, and the last five are kept.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from trimtab.cli.options import add_client_options, add_options, read_pairs, refuse_options
from trimtab.cli.table import show_count
from trimtab.cluster.server.open_host import INSECURE, refuse_open_host
from trimtab.cluster.server.secret_file import SECRET_FILE, read_or_make_secret
from trimtab.kafka.errors import Unavailable, UsageError

TYPE_CHECKING = False  # the same as typing's; importing typing would delay the processes' start
if TYPE_CHECKING:
    from typing import Any

    from trimtab.cluster.processes.supervisor import Program

EXAMPLES = """\
  trimtab cluster up
  trimtab cluster up --brokers 3 --racks a,b,c --port 9092 --data ./kafka-data
  trimtab cluster up --brokers 3 --slow 0=20 --config num.partitions=6
                                 broker 0 answers every produce request 20 ms late, and one at
                                 a time for each connection, as in the tests of KIP-794
  trimtab cluster info
  trimtab cluster up --host 0.0.0.0 --advertised-host localhost --insecure
                                 in a container whose port 9092 is published
  trimtab cluster cluster-id --bootstrap-server localhost:9092
  trimtab cluster list-endpoints --include-fenced-brokers
  trimtab cluster unregister --id 2
"""

_INPUT = 0
"""The descriptor of standard input."""
_LOOPBACK = "127.0.0.1"
_LOGS = "logs"
_ASK_AGAIN_S = 0.01
_ANSWER_S = 1.0
_QUIET_S = 3600.0
_METADATA_OF_NO_TOPIC = struct.pack(">ihhihi", 14, 3, 1, 0, -1, 0)
"""A complete request, version 1; bytes 8 to 11 of the answer are the number of brokers."""

_MEMBERS = {
    "info": (
        "show a cluster at a glance: brokers, topics, what is out of sync, sizes",
        "Show a cluster at a glance: its id and features, its brokers with their racks, sizes and\n"
        "versions, its topics, and how many partitions lack replicas in sync.",
    ),
    "cluster-id": (
        "print the id of a cluster",
        "Print the id of a cluster, with the options of kafka-cluster.",
    ),
    "list-endpoints": (
        "list the brokers and their addresses",
        "List the brokers and their addresses, with the options of kafka-cluster.",
    ),
    "unregister": (
        "remove a stopped broker that will not come back",
        "Remove the registration of a stopped broker that will not come back, with the options of "
        "kafka-cluster.\nA broker of trimtab's that runs registers again.",
    ),
}
"""The verbs about a running cluster, each with its line in the list of verbs, and its help."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser(
        "up",
        help="start a cluster and keep it running",
        description=__doc__,
        epilog=f"examples:\n{EXAMPLES}",
    )
    options = {
        "--brokers N=1": "number of brokers",
        "--racks RACK,…": "one rack for each broker, in order (default: no racks)",
        f"--host HOST={_LOOPBACK}": "the address that brokers listen on and advertise",
        "--insecure": INSECURE,
        "--advertised-host HOST": "the name or address under which clients, and the brokers among "
        "themselves, connect to the brokers, if it is not --host (default: --host; this machine's "
        "name if that is 0.0.0.0 or ::)",
        "--port PORT=9092": "port of broker 0; the other brokers get the ports after it; 0: any "
        "free ports",
        "--data DIR": "directory for logs and metadata (default: a temporary one, deleted at the "
        "end)",
        "--slow BROKER=MS …": "delay each of this broker's answers to produce requests by MS "
        "milliseconds (default: no delay)",
        "--config NAME=VALUE …": "options for all brokers and the controller, such as "
        "num.partitions=6",
        "--metrics-port PORT": "serve Prometheus metrics at /metrics: the controller's on this "
        "port, those of broker 0, 1, … on the ports after it (default: none; see docs/metrics.md)",
        "--stop-at-eof": "end when standard input ends, because the process that started this one "
        "has ended",
    }
    add_options(up, options)
    _configure_members(verbs)


def _configure_members(verbs: argparse._SubParsersAction[Any]) -> None:
    """The verbs of kafka-cluster, and `info`."""
    for name, (summary, description) in _MEMBERS.items():
        parser = verbs.add_parser(name, help=summary, description=description)
        if name == "list-endpoints":
            fenced = "also brokers that the controller has fenced, such as stopped ones"
            add_options(parser, {"--include-fenced-brokers": fenced})
        if name == "unregister":
            add_options(parser, {"--id -i N": "the broker's id"}, required=("--id",))
        add_options(parser, {"--json": "print JSON objects, one a line"})
        why = "trimtab's clients do not connect to controllers: use --bootstrap-server"
        refuse_options(parser, {"--bootstrap-controller -C": why})
        add_client_options(parser, files=["-c", "--config"], servers=["-b"])


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "up":
        return run_cluster(arguments)
    from trimtab.cli import cluster_info

    actions = {
        "info": cluster_info.print_info,
        "cluster-id": cluster_info.print_id,
        "list-endpoints": cluster_info.list_endpoints,
        "unregister": cluster_info.unregister,
    }
    return actions[arguments.verb](arguments)


def run_cluster(arguments: argparse.Namespace) -> int:
    racks = choose_racks(arguments.brokers, arguments.racks)
    slow = read_delays(arguments.slow, arguments.brokers)
    config = read_config(arguments.config)
    metrics = choose_metrics_ports(arguments.metrics_port, arguments.brokers)
    refuse_unreachable(arguments.advertised_host)
    refuse_open_host(arguments.host, arguments.insecure)
    if arguments.insecure:
        _say(f"--insecure: anyone who can connect to {arguments.host} may do anything")
    with ExitStack() as stack:
        ports = stack.enter_context(
            hold_ports(arguments.host, choose_ports(arguments.port, arguments.brokers))
        )
        (controller,) = stack.enter_context(hold_ports(_LOOPBACK, [0]))
        metrics = stack.enter_context(hold_ports(arguments.host, metrics))
        data = stack.enter_context(open_data(arguments.data, arguments.brokers))
        # Before the nodes start, as each of them needs it.
        read_or_make_secret(f"{data}/controller/{SECRET_FILE}", durable=arguments.data is not None)
        programs = list_programs(
            arguments.host,
            controller,
            ports,
            racks,
            slow,
            data,
            config,
            arguments.data is None,
            metrics,
            arguments.advertised_host,
            arguments.insecure,
        )
        if metrics:
            from trimtab.cluster.config.node import format_address

            places = (f"http://{format_address(arguments.host, port)}/metrics" for port in metrics)
            _say(f"metrics of the controller and the brokers: {', '.join(places)}")
        _supervise(programs, f"{data}/{_LOGS}", arguments.brokers, arguments.stop_at_eof)
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
    metrics_ports: Sequence[int] = (),
    advertised_host: str | None = None,
    insecure: bool = False,
) -> list[Program]:
    """The processes of a cluster: the controller, then its brokers. The brokers are stopped after
    the controller, which would otherwise elect new leaders for each broker that ends."""
    from trimtab.cluster.config.node import format_address
    from trimtab.cluster.processes.supervisor import Program

    # Import from the working directory only if this process does.
    python = [sys.executable, *(() if os.getcwd() in sys.path else ("-P",)), "-m", "trimtab"]
    common = [
        "--stop-at-eof",
        *(["--no-fsync"] if temporary else []),
        *(["--config", *config] if config else []),
    ]
    words = [
        *(*python, "controller", "--host", _LOOPBACK, "--port", str(controller_port)),
        *("--data", f"{data}/controller", "--log-file", f"{data}/{_LOGS}/controller.log"),
        *(("--metrics-host", host) if metrics_ports else ()),
        *(("--metrics-port", str(metrics_ports[0])) if metrics_ports else ()),
        *common,
    ]
    programs = [Program("controller", words)]
    for broker, port in enumerate(ports):
        name = f"broker-{broker}"
        own: list[str] = []
        if advertised_host is not None:
            address = format_address(advertised_host, port)
            own = ["--config", f"advertised.listeners=PLAINTEXT://{address}"]
        words = [
            *(*python, "broker", "--id", str(broker)),
            *("--controller", f"{_LOOPBACK}:{controller_port}"),
            *("--host", host, "--port", str(port), "--data", f"{data}/{name}"),
            *("--cluster-secret-file", f"{data}/controller/{SECRET_FILE}"),
            *(("--insecure",) if insecure else ()),
            *("--log-file", f"{data}/{_LOGS}/{name}.log"),
            *(("--slow", f"{slow[broker]:g}") if broker in slow else ()),
            *(("--rack", racks[broker]) if racks else ()),
            *(("--metrics-port", str(metrics_ports[broker + 1])) if metrics_ports else ()),
            *(*own, *common),
        ]
        programs.append(Program(name, words, rank=1))
    return programs


def _supervise(programs: Sequence[Program], logs: str, brokers: int, stop_at_eof: bool) -> None:
    """Run the cluster until SIGTERM, SIGINT, or the end of standard input.

    Raises:
        Unavailable: the cluster could not be started.
        UsageError: standard input is to be watched, and cannot be.
    """
    from trimtab.cluster.processes.supervisor import Signals, Supervisor

    with Signals((signal.SIGTERM, signal.SIGINT)) as signals:
        supervisor = Supervisor(programs, logs, _say)
        supervisor.watch(signals.descriptor)
        if stop_at_eof:
            try:
                supervisor.watch(_INPUT)
            except OSError as error:
                raise UsageError(
                    f"--stop-at-eof: standard input cannot be watched: {error}; make it a pipe"
                ) from error
        try:
            supervisor.start()
            is_ready = False
            while not signals.count and not (stop_at_eof and _input_has_ended()):
                if not is_ready and supervisor.serves:
                    is_ready = _print_if_ready(supervisor.first_lines, brokers)
                supervisor.turn(_QUIET_S if is_ready or not supervisor.serves else _ASK_AGAIN_S)
            _say("stopping")
        finally:
            signals.clear()
            supervisor.stop(at_once=lambda: signals.count > 1)


def _input_has_ended() -> bool:
    """Whether standard input has ended. What it has is passed over."""
    is_readable = bool(select.select([_INPUT], [], [], 0)[0])
    return is_readable and not os.read(_INPUT, 4096)


def _print_if_ready(said: dict[str, str], brokers: int) -> bool:
    addresses = [
        said[f"broker-{broker}"].removeprefix("ready ").strip() for broker in range(brokers)
    ]
    if not all(answers(address, brokers) for address in addresses):
        return False
    print(f"ready {','.join(addresses)}", flush=True)
    return True


def answers(address: str, brokers: int) -> bool:
    """Whether the broker at this address answers, and knows at least `brokers` brokers."""
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
    """Reserve ports for the processes that will listen on them; for 0 a free port.

    On Linux a bound socket that does not listen reserves the port: the system gives it to no other
    process, nor to an outgoing connection while the listening process restarts. On other systems
    such a socket would keep the process from listening, so the ports are released.

    Raises:
        Unavailable: a port is in use.
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
                    f"cannot reserve port {port} on {host}: {error}; if the port is in use, name "
                    "another --port, or 0 for any free one"
                ) from error
            taken.append(int(holder.getsockname()[1]))
        if sys.platform != "linux":
            held.close()
        yield taken


@contextmanager
def open_data(given: str | None, brokers: int) -> Iterator[str]:
    """Create the data directory with its log directory; a temporary one if none is given.

    A temporary directory is deleted at the end; but if the cluster could not be started, its log
    files stay.

    Raises:
        Unavailable: the directory cannot be created.
        UsageError: it holds data of more brokers, or data of brokers but none of the controller.
    """
    if given is not None:
        data = os.path.abspath(given)
        refuse_missing_brokers(data, brokers)
        try:
            os.makedirs(data, 0o700, exist_ok=True)
            os.makedirs(f"{data}/{_LOGS}", 0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"cannot create {data}: {error.strerror}; name another --data"
            ) from error
        yield data
        return
    from trimtab.cluster.disk.temporary import temporary_directory

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
        UsageError: the directory holds data of a broker that `brokers` does not include, or of
            brokers but none of the controller.
    """
    names = os.listdir(data) if os.path.isdir(data) else []
    known = [
        int(name.removeprefix("broker-"))
        for name in names
        if name.startswith("broker-") and name.removeprefix("broker-").isdecimal()
    ]
    if known and max(known) >= brokers:
        raise UsageError(
            f"--brokers {brokers}: {data} holds the data of "
            f"{show_count(max(known) + 1, 'broker')}; start that many, or choose another "
            "data directory"
        )
    is_used = any(
        name.startswith("broker-") and os.path.exists(f"{data}/{name}/meta.properties")
        for name in names
    )
    if is_used and not os.path.exists(f"{data}/controller/meta.properties"):
        raise UsageError(
            f"{data} holds the data of brokers, but {data}/controller is missing: put it back, or "
            f"rebuild it with `trimtab recover --data {data}`"
        )


def choose_ports(first: int, count: int, option: str = "--port") -> list[int]:
    """Consecutive ports from `first`; only zeros if `first` is 0.

    Raises:
        UsageError: a port would be outside 0 to 65535.
    """
    ports = [first + number if first else 0 for number in range(count)]
    if first < 0 or ports[-1] > 65535:
        raise UsageError(
            f"{option} {first}: {show_count(count, 'port')} from {first} on exceed 0 to 65535"
        )
    return ports


def choose_metrics_ports(first: int | None, brokers: int) -> list[int]:
    """The ports for the metrics of the controller and each broker; empty for no metrics.

    Raises:
        UsageError: a port would be outside 0 to 65535, or prometheus_client is missing.
    """
    if first is None:
        return []
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise UsageError("--metrics-port needs prometheus_client: pip install prometheus_client")
    return choose_ports(first, brokers + 1, "--metrics-port")


def refuse_unreachable(advertised_host: str | None) -> None:
    """
    Raises:
        UsageError: no client can connect to this host, or it is not a host.
    """
    if advertised_host is None:
        return
    if advertised_host in ("", "0.0.0.0", "::"):
        raise UsageError(
            f"--advertised-host {advertised_host!r}: clients cannot connect to this host; name one "
            "that they can reach, such as localhost"
        )
    if ":" in advertised_host:
        try:
            socket.inet_pton(socket.AF_INET6, advertised_host)
        except OSError:
            raise UsageError(
                f"--advertised-host {advertised_host}: write a host without a port, which is the "
                "one of --port"
            ) from None


def read_config(words: Sequence[str]) -> list[str]:
    """Check the values of `--config`, and write them as every node receives them.

    Raises:
        UsageError: an option is unknown, has an invalid value, contradicts another, or must differ
            from node to node.
    """
    from trimtab.cluster.config import BROKER, check_broker
    from trimtab.cluster.config.node import EMBEDDED, OWN_OPTIONS
    from trimtab.kafka.options import read, read_given, write

    given = read_given(BROKER, read_pairs(words))
    for name in OWN_OPTIONS:
        if name in given:
            raise UsageError(
                f"broker option {name} differs from broker to broker; `trimtab cluster up` sets "
                "it from its own options"
            )
    values = {**EMBEDDED, **given}
    check_broker(read(BROKER, values))
    return [f"{name}={write(value)}" for name, value in values.items()]


def choose_racks(brokers: int, text: str | None) -> list[str] | None:
    """`a,b,c` as a list of one rack per broker.

    Raises:
        UsageError: the number of racks is not `brokers`, or `brokers` is below 1.
    """
    if brokers < 1:
        raise UsageError(f"--brokers {brokers}: a cluster has at least one broker")
    if text is None:
        return None
    racks = text.split(",")
    if len(racks) != brokers:
        raise UsageError(
            f"--racks {text}: {show_count(len(racks), 'rack')} for "
            f"{show_count(brokers, 'broker')}; name one for each broker"
        )
    return racks


def read_delays(words: Sequence[str], brokers: int) -> dict[int, float]:
    """`["0=20"]` as milliseconds by broker.

    Raises:
        UsageError: there is no such broker, or the delay is not a number.
    """
    delays = {}
    for broker, delay in read_pairs(words).items():
        if not broker.isdecimal() or int(broker) >= brokers:
            raise UsageError(f"--slow {broker}={delay}: brokers are 0 to {brokers - 1}")
        try:
            delays[int(broker)] = float(delay)
        except ValueError:
            raise UsageError(
                f"--slow {broker}={delay}: write milliseconds, such as 0=20 for broker 0"
            ) from None
    return delays


def _say(text: str) -> None:
    print(f"trimtab cluster: {text}", file=sys.stderr, flush=True)
