"""What the experiments share: reading a perf tool's output, running one, tables, the command."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import pytest

from lab.experiments.cluster import open_cluster
from lab.experiments.display import Display
from lab.experiments.perf import (
    PerfFailed,
    read_perf_output,
    run_perf,
    trimtab_perf,
)
from trimtab.cli import main
from trimtab.kafka.errors import UsageError

# Three lines of KIP-794's own output, and what surrounds them.
OUTPUT = """\
1025 records sent, 205.0 records/sec (0.10 MB/sec), 5.0 ms avg latency, 20.0 ms max latency.
122880 records sent, 2045.477245 records/sec (1.00 MB/sec), 40.06 ms avg latency, \
817.00 ms max latency, 7 ms 50th, 141 ms 95th, 154 ms 99th, 220 ms 99.9th.

Metric Name                                                            Value
app-info:version:{client-id=perf-producer-client}                    : 4.3.0
producer-metrics:batch-size-avg:{client-id=perf-producer-client}     : 812.500
producer-metrics:batch-size-max:{client-id=perf-producer-client}     : NaN
producer-node-metrics:outgoing-byte-total:{client-id=p, node-id=node--1} : 99.000
producer-node-metrics:outgoing-byte-total:{client-id=p, node-id=node-0} : 19244362.000
producer-node-metrics:outgoing-byte-total:{client-id=p, node-id=node-1} : 23589010.000
producer-node-metrics:request-total:{client-id=p, node-id=node-1} : 12.000
producer-node-metrics:request-total:{client-id=p, node-id=node-2147483646} : 5.000
"""


def test_the_figures_of_a_perf_tool_are_read() -> None:
    run = read_perf_output(OUTPUT)
    assert (run.records, run.records_per_second, run.megabytes_per_second) == (
        *(122880, 2045.477245, 1.0),
    )
    assert run.latency_ms == {
        "average": 40.06,
        "p50": 7,
        "p95": 141,
        "p99": 154,
        "p99_9": 220,
        "max": 817,
    }
    assert run.metrics["batch-size-avg"] == 812.5
    assert run.node_totals("outgoing-byte-total") == {0: 19244362, 1: 23589010}
    assert run.node_totals("request-total") == {0: 0, 1: 12}


def test_without_a_summary_the_last_words_are_told() -> None:
    with pytest.raises(PerfFailed, match="its last lines:\nsomething went wrong"):
        read_perf_output("something went wrong")


def test_a_command_says_everything() -> None:
    words = trimtab_perf(
        *("t", 10, 100, 2048, ["--bootstrap-server", "h:1"]),
        {"linger.ms": 0, "partitioner.rack.aware": True},
        ["--key-distribution", "range"],
    )
    text = " ".join(words[1:])
    assert text.startswith("-m trimtab producer-perf --print-metrics --topic t --num-records 10")
    assert "--throughput 2048" in text
    assert "--bootstrap-server h:1" in text
    assert "--command-property linger.ms=0 partitioner.rack.aware=true" in text
    assert text.endswith("--key-distribution range")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_tool_is_followed_to_its_end() -> None:
    seen: list[int] = []
    run = asyncio.run(run_perf(python(f"print({OUTPUT!r})"), 30, seen.append))
    assert run.latency_ms["p99"] == 154
    assert seen == [1025, 122880]


def test_a_tool_that_fails_says_how() -> None:
    code = "import sys; print('no broker'); sys.exit(3)"
    with pytest.raises(PerfFailed, match=r"(?s)exit code 3.*no broker"):
        asyncio.run(run_perf(python(code), 30))


def test_a_tool_that_takes_too_long_is_ended() -> None:
    endless = "import threading; print('at it', flush=True); threading.Event().wait()"
    with pytest.raises(PerfFailed, match=r"(?s)did not end within 1 s.*at it"):
        asyncio.run(run_perf(python(endless), 1))


def test_a_tool_is_ended_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    """Ctrl-C cancels; a producer must not outlive the experiment."""
    mark = tmp_path / "ended"
    code = (
        "import signal, threading, pathlib, sys\n"
        f"def end(*_): pathlib.Path({str(mark)!r}).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('1 records sent, 1.0 records/sec (0.00 MB/sec), 1.0 ms avg latency, "
        "1.0 ms max latency.', flush=True)\n"
        "threading.Event().wait()\n"
    )

    async def cancel_once_it_runs() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(run_perf(python(code), 60, lambda done: begun.set()))
        await asyncio.wait_for(begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_once_it_runs())
    assert mark.exists()


def test_progress_without_a_terminal_is_a_line_for_every_fifth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Display().follow("sending", 100) as show:
        for done in range(0, 101, 5):
            show(done)
    assert capsys.readouterr().out.split() == ["sending", "20%", "40%", "60%", "80%", "100%"]


def test_only_our_own_brokers_are_slowed() -> None:
    arguments = argparse.Namespace(bootstrap_server=None, command_config=None, command_property=[])
    with open_cluster(arguments, ["a"], {}) as ours:
        assert ours.brokers == [0]
        with ours.topic("kept", [0, 0]) as view:
            assert view.leaders == (0, 0)
            assert ours.count_records(view) == [0, 0]
            assert ours.admin.topics() == [view.name]
        assert ours.admin.topics() == []
        arguments.bootstrap_server = ours.client_words[1]
        with open_cluster(arguments, ["a"], {}) as theirs:
            assert theirs.client_words == ours.client_words
            with pytest.raises(UsageError, match="only an embedded cluster"):
                theirs.slow(0, 20)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("kip794", "--records", "0"), "--records 0: send at least 1"),
        (("kip480", "--records", "0"), "--records 0: send at least 1"),
        (("kip1123", "--records", "9"), "--records 9: send at least"),
    ],
)
def test_too_few_records_are_refused(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", *words]) == 1
    assert why in capsys.readouterr().err


def test_a_short_series_runs_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--records", "512", "--series", "2", "--configuration", "uniform", "adaptive")
    assert main(["experiment", "kip794", *words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Series 2: 4096 records/s of 512 bytes" in shown
    assert "  in the proposal" in shown
    assert "426.24" in shown
    result = json.loads((tmp_path / "kip794.json").read_text())
    assert [run["configuration"] for run in result["runs"]] == ["uniform", "adaptive"]
    for run in result["runs"]:
        assert sum(run["records_by_broker"].values()) == 512
        assert sum(run["bytes_by_broker"].values()) > 512 * 512
        assert run["latency_ms"]["average"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "kip794.json",
        "series2-latency.svg",
        "series2-shares.svg",
    }
