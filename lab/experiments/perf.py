"""Runs a producer-perf tool, trimtab's or Kafka's, in a process, and parses its output.

Both tools print the same lines. Each run has its own process, so that other work in the same
process does not add to the measured latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lab.output import Latency
from trimtab.kafka.errors import KafkaError

INTERVAL_MS = 500
"""Milliseconds between two lines of progress."""

LEAST_MS = 1.0
"""Percentiles are printed in whole milliseconds, rounded down: 0 means less than this."""

STOP_S = 5.0
"""Seconds after SIGTERM until a tool is killed."""

_LONGEST_LINE = 1 << 20
_LAST_LINES = 2000

_WINDOW = re.compile(r"(\d+) records sent, .* ms max latency\.$")
_SUMMARY = re.compile(
    r"(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec \((?P<mb>[\d.]+) MB/sec\), "
    r"(?P<average>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, (?P<p50>\d+) ms 50th, "
    r"(?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, (?P<p99_9>\d+) ms 99\.9th\."
)
_METRIC = re.compile(r"(?P<group>[\w-]+):(?P<name>[\w-]+):\{(?P<tags>[^}]*)\} *: (?P<value>\S+)$")


class Configuration(NamedTuple):
    """A partitioner and its producer options."""

    title: str
    settings: Mapping[str, str | int | bool]


def add_choices(
    parser: argparse.ArgumentParser, name: str, choices: Iterable[str], help: str
) -> None:
    """Add an option that selects some of these; without it, all are."""
    each = list(choices)
    parser.add_argument(name, nargs="+", choices=each, default=each, help=f"{help} (default: all)")


class PerfFailed(KafkaError):
    """A tool failed, printed no summary, or took too long."""


class PerfRun(NamedTuple):
    """The results of one run of a tool.

    Attributes:
        megabytes_per_second: in units of 2^20 bytes, record values only.
        metrics: `producer-metrics` by name.
        nodes: `producer-node-metrics` by broker id; without bootstrap addresses and coordinators.
    """

    records: int
    records_per_second: float
    megabytes_per_second: float
    latency_ms: Latency
    metrics: Mapping[str, float]
    nodes: Mapping[int, Mapping[str, float]]

    def node_totals(self, name: str) -> dict[int, float]:
        """One metric of each broker, such as `outgoing-byte-total`; 0 if the broker lacks it."""
        return {node: values.get(name, 0.0) for node, values in sorted(self.nodes.items())}


def read_perf_output(text: str) -> PerfRun:
    """Parse a tool's output.

    Raises:
        PerfFailed: there is no summary; the error includes the last lines.
    """
    summary = _SUMMARY.search(text)
    if summary is None:
        raise PerfFailed(
            f"the perf tool printed no summary; its last lines:\n{text[-_LAST_LINES:]}"
        )
    metrics: dict[str, float] = {}
    nodes: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        found = _METRIC.match(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue  # a version or another text
        if found["group"] == "producer-metrics":
            metrics[found["name"]] = value
        elif found["group"] == "producer-node-metrics":
            node = re.search(r"node-id=node-(\d+)", found["tags"])
            if node is not None and int(node[1]) < 1 << 30:
                nodes.setdefault(int(node[1]), {})[found["name"]] = value
    return PerfRun(
        records=int(summary["records"]),
        records_per_second=float(summary["rate"]),
        megabytes_per_second=float(summary["mb"]),
        latency_ms={
            "average": float(summary["average"]),
            "p50": float(summary["p50"]),
            "p95": float(summary["p95"]),
            "p99": float(summary["p99"]),
            "p99_9": float(summary["p99_9"]),
            "max": float(summary["max"]),
        },
        metrics=metrics,
        nodes=nodes,
    )


def trimtab_perf(
    topic: str,
    records: int,
    record_bytes: int,
    rate: float,
    client_words: Sequence[str],
    settings: Mapping[str, Any],
    more: Sequence[str] = (),
) -> list[str]:
    """The command line of `trimtab producer-perf`.

    Args:
        rate: records per second; -1 for no limit.
        client_words: command line options that name the cluster.
        settings: producer options of this run.
        more: other options of the tool.
    """
    properties = [f"{name}={_word(value)}" for name, value in settings.items()]
    return [
        *(sys.executable, "-m", "trimtab", "producer-perf", "--print-metrics"),
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", f"{rate:g}", "--reporting-interval", str(INTERVAL_MS)),
        *client_words,
        *(("--command-property", *properties) if properties else ()),
        *more,
    ]


async def run_perf(
    command: Sequence[str], timeout_s: float, show: Callable[[int], object] = lambda records: None
) -> PerfRun:
    """Run a tool to its end.

    Args:
        timeout_s: seconds after which the tool is stopped.
        show: called with the number of records acknowledged so far.

    Raises:
        PerfFailed: the tool ended with an error, without a summary, or not in time.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LONGEST_LINE,
    )
    lines: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            assert process.stdout is not None
            done = 0
            async for line in process.stdout:
                lines.append(line.decode("utf-8", "replace"))
                window = _WINDOW.match(lines[-1])
                if window is not None:
                    done += int(window[1])
                    show(done)
            code = await process.wait()
    except TimeoutError:
        raise PerfFailed(
            f"the perf tool did not end within {timeout_s:.0f} s: {' '.join(command)}\n"
            f"{''.join(lines)[-_LAST_LINES:]}"
        ) from None
    finally:
        await _end(process)
    if code != 0:
        raise PerfFailed(
            f"the perf tool ended with exit code {code}: {' '.join(command)}\n"
            f"{''.join(lines)[-_LAST_LINES:]}"
        )
    run = read_perf_output("".join(lines))
    show(run.records)
    return run


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and wait for it, also when this task is being cancelled."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
