"""Repeat an experiment of a Kafka proposal, and compare the results with the published ones.

Without --bootstrap an embedded cluster is started. Each producer is a `trimtab producer-perf` in
its own process. Results (JSON) and plots (SVG) are written to --out. Ctrl-C ends all processes
that the command started.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.experiments.display import Display
from trimtab.cli.options import add_client_options
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab experiment kip794                        both series, all configurations: 8 minutes
  trimtab experiment kip794 --series 2 --configuration adaptive timeout --records 20000
  trimtab experiment kip794 --bootstrap 127.0.0.1:9092     on an existing cluster
  trimtab experiment kip480
  trimtab experiment kip1123 --out racks
"""

EXPERIMENTS = {
    "kip794": ("lab.experiments.kip794", "strictly uniform and adaptive partitioning"),
    "kip480": ("lab.experiments.kip480", "round robin and sticky: batch sizes, latency"),
    "kip1123": ("lab.experiments.kip1123", "rack-aware partitioning: bytes across racks"),
}
"""By name, the module and its summary. A module has `configure(parser)`, the default and the lowest
number of records, and `async run(arguments, display)`, which returns findings, results for JSON,
and plots by file name."""


def configure(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, (path, summary) in EXPERIMENTS.items():
        module = importlib.import_module(path)
        one = names.add_parser(
            name,
            help=summary,
            description=module.__doc__,
        )
        one.add_argument(
            "--out",
            type=Path,
            default=Path(f"{name}-out"),
            metavar="DIR",
            help=f"write JSON and plots to this directory (default: {name}-out)",
        )
        one.add_argument(
            "--records",
            type=int,
            default=module.RECORDS,
            metavar="N",
            help=f"records that each producer sends in each run (default: {module.RECORDS})",
        )
        one.add_argument(
            "--json",
            action="store_true",
            help="print the results as one JSON object; progress goes to standard error",
        )
        module.configure(one)
        if module.RUNS_ANYWHERE:
            add_client_options(one, servers=["--bootstrap"])
        else:
            one.set_defaults(bootstrap_server=None)


def run(arguments: argparse.Namespace) -> int:
    """Run one experiment; see the module.

    Raises:
        UsageError: an option has an invalid value.
        KafkaError: the cluster rejected a request, or a run failed.
        KeyboardInterrupt: SIGINT or SIGTERM was received; all started processes have ended.
    """
    module = importlib.import_module(EXPERIMENTS[arguments.experiment][0])
    if arguments.records < module.FEWEST_RECORDS:
        raise UsageError(f"--records {arguments.records}: send at least {module.FEWEST_RECORDS}")
    display = Display(sys.stderr if arguments.json else None)
    with _interruptible(), asyncio.Runner() as runner:
        findings, result, plots = runner.run(module.run(arguments, display))
    for finding in findings:
        display.say(finding)
    _write(arguments.out, arguments.experiment, result, plots)
    display.say(f"Written to {arguments.out}: {arguments.experiment}.json, {', '.join(plots)}")
    if arguments.json:
        print(json.dumps(result, indent=2))
    return 0


def _write(out: Path, name: str, result: dict[str, Any], plots: dict[str, str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for file, drawn in plots.items():
        (out / file).write_text(drawn, encoding="utf-8")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
