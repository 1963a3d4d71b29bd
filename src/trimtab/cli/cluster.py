"""Run an embedded Kafka-protocol cluster in this process, for any Kafka client.

`cluster up` listens on consecutive ports of the loopback interface, prints one line
`ready HOST:PORT,HOST:PORT,…` on standard output once every broker answers, and runs until SIGTERM
or Ctrl-C. Without --data the logs are temporary and go with the process.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from trimtab.cli.options import read_pairs
from trimtab.errors import Unavailable, UsageError

EXAMPLES = """\
  trimtab cluster up
  trimtab cluster up --brokers 3 --racks a,b,c --port 9092 --data ./kafka-data
  trimtab cluster up --brokers 3 --slow 0=20 --config num.partitions=6
                                 broker 0 answers every produce request 20 ms late, one at a
                                 time per connection: the test setup of KIP-794
"""


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
    up.add_argument("--host", default="127.0.0.1", help="listen and advertise (default: 127.0.0.1)")
    up.add_argument(
        "--port",
        type=int,
        default=9092,
        help="broker 0's; the others have the next ones; 0: any free ones (default: 9092)",
    )
    up.add_argument("--data", metavar="DIR", help="where the logs are kept (default: temporary)")
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
        help="broker options, such as num.partitions=6",
    )


def run(arguments: argparse.Namespace) -> int:
    from trimtab.runtime.event_loop import new_event_loop

    racks = choose_racks(arguments.brokers, arguments.racks)
    slow = read_delays(arguments.slow, arguments.brokers)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(arguments, racks, slow))
    except OSError as error:
        raise Unavailable(
            f"no cluster on {arguments.host}, port {arguments.port} and up: {error}; "
            "if a port is taken name another --port, or 0 for any"
        ) from error
    return 0


async def serve(
    arguments: argparse.Namespace, racks: Sequence[str] | None, slow: dict[int, float]
) -> None:
    """Keep the cluster up until SIGTERM or SIGINT."""
    from trimtab.cluster import Cluster

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Cluster(
        brokers=arguments.brokers,
        racks=racks,
        data=arguments.data,
        ports=arguments.port or None,
        host=arguments.host,
        config=read_pairs(arguments.config),
    ) as cluster:
        for broker, delay_ms in slow.items():
            cluster.slow(broker=broker, produce_ms=delay_ms)
        print(f"ready {cluster.bootstrap_servers}", flush=True)
        await stop.wait()
        print("stopping", file=sys.stderr)


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
