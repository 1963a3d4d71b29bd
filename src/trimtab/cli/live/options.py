"""The options by which `trimtab top` and `trimtab load` watch a cluster.

Tests: test_source.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import read_client_options
from trimtab.kafka.errors import UsageError
from trimtab.spark.options.load import COST_PER_GB

if TYPE_CHECKING:
    from trimtab.cli.live.source import Watched

LIVE_OPTIONS: Final = {
    "--keys {text,hash,none}=text": "show the keys of the newest records as text, by their "
    "hashes, or read no records",
    "--probe": "find slow brokers with small records to a topic of its own, __trimtab_probe, which "
    "is removed at the end",
    f"--cost-per-gb N={COST_PER_GB}": "what a GB between racks costs",
}


def check_live_options(arguments: argparse.Namespace) -> None:
    """Raises:
    UsageError: --window or --cost-per-gb is out of range.
    """
    if not 2 <= arguments.window <= 3600:
        raise UsageError(f"--window {arguments.window:g}: write 2 to 3600 seconds")
    if not 0 <= arguments.cost_per_gb < math.inf:
        raise UsageError(f"--cost-per-gb {arguments.cost_per_gb:g}: write 0 or more")


def watch(arguments: argparse.Namespace) -> Watched:
    """The cluster that the options name; to be entered."""
    from trimtab.cli.live.source import Watched

    return Watched(
        read_client_options(arguments),
        window_s=arguments.window,
        probes=arguments.probe,
        show_key=choose_keys(arguments.keys),
    )


def choose_keys(keys: str) -> Callable[[bytes], str] | None:
    """How keys are shown; None to read no records.

    Args:
        keys: "text", "hash" or "none".
    """
    from trimtab.client.partitioner.key_spread import key_text
    from trimtab.client.partitioner.murmur2_cy import murmur2

    if keys == "none":
        return None
    return key_text if keys == "text" else lambda key: f"hash {murmur2(key):08x}"
