"""A cluster's load in the terminal, as it changes: brokers, topics, groups, racks, room, the plan.

Watches any Kafka cluster from outside, and changes nothing. Keys: ? shows them, q ends.

exit codes: 0 ended with q, 1 refused or failed, 2 misspelt command line, 130 Ctrl-C, 143 SIGTERM
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.live.options import LIVE_OPTIONS, check_live_options, watch
from trimtab.cli.options import add_client_options, add_options, is_given, spell
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from trimtab.cli.live.source import Source

EXAMPLES = """\
  trimtab top
  trimtab top --bootstrap-server kafka:9092 --probe
  trimtab top --keys hash --window 10
  trimtab top --recording recording.jsonl.gz
"""


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--window SECONDS=30": "rates are means over so long; several times the interval at which "
        "consumers commit",
        **LIVE_OPTIONS,
        "--recording --replay FILE": "show the busiest moment of what `trimtab dashboard "
        "--record` has written, and no cluster",
    }
    numbers = ("--window", "--cost-per-gb")
    add_options(parser, options, types={**dict.fromkeys(numbers, float), "--recording": Path})
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_live_options(arguments)
    source = _open(arguments)
    try:
        from trimtab.cli.top.app import TopApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        raise UsageError(f"top needs textual: pip install 'trimtab[top]' ({error})") from None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("top needs a terminal: `trimtab load` prints the load of some seconds")
    with source as opened:
        app = TopApp(opened, arguments.cost_per_gb)
        app.run()
    return app.return_code or 0


def _open(arguments: argparse.Namespace) -> AbstractContextManager[Source]:
    if arguments.recording is None:
        return watch(arguments)
    from trimtab.cli.live.source import Recorded

    for name in ("bootstrap_server", "command_config", "command_property", "probe"):
        if is_given(getattr(arguments, name)):
            raise UsageError(f"{spell(name)} is for a live cluster: leave it or --recording out")
    return nullcontext(Recorded(arguments.recording))
