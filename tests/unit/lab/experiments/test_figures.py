"""What each experiment makes of its figures: sentences, tables, plots; from figures made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.experiments import kip480, kip794, kip1123
from lab.experiments.perf import PerfRun
from trimtab.kafka.errors import UsageError


def make_run(
    average: float = 40, p99: float = 154, nodes: dict[int, dict[str, float]] | None = None
) -> PerfRun:
    return PerfRun(
        records=900,
        records_per_second=2048,
        megabytes_per_second=1.0,
        latency_ms={
            "average": average,
            "p50": 1,
            "p95": p99 / 2,
            "p99": p99,
            "p99_9": p99 * 2,
            "max": p99 * 3,
        },
        metrics={"batch-size-avg": 800},
        nodes=nodes or {},
    )


# KIP-794


def make_series(name: str, p99: float, records: tuple[int, int, int]) -> kip794.Measured:
    nodes = {broker: {"outgoing-byte-total": 520.0 * of} for broker, of in enumerate(records)}
    by_broker = dict(enumerate(records))
    return kip794.Measured(1, name, make_run(p99 / 4, p99, nodes), [0, 1, 2], by_broker)


SERIES = [
    make_series("sticky", 10_000, (720, 90, 90)),
    make_series("uniform", 200, (306, 297, 297)),
    make_series("adaptive", 100, (270, 315, 315)),
    make_series("free", 40, (180, 360, 360)),
]


def test_findings_are_the_proposals_claims() -> None:
    assert kip794.describe_findings(SERIES) == [
        "Series 1: sticky's p99 is 100 times that of adaptive, and it sends the slow broker 80%"
        " of the records.",
        "Series 1: uniform's brokers are within 3.0% of each other and take 1.00 MiB/s.",
        "Series 1: adaptive sustains 1.00 MiB/s and sends the slow broker 30%.",
        "Series 1: with free, average and p99 are 0.40 and 0.40 times adaptive's, and the"
        " brokers are within 60.0% of each other.",
    ]


def test_findings_are_of_the_runs_there_are() -> None:
    assert kip794.describe_findings(SERIES[:1]) == []
    assert len(kip794.describe_findings(SERIES[1:3])) == 2


def test_bytes_and_shares_are_those_of_the_brokers() -> None:
    adaptive = SERIES[2]
    assert adaptive.bytes_by_broker == {0: 520 * 270, 1: 520 * 315, 2: 520 * 315}
    assert adaptive.shares == {0: 0.3, 1: 0.35, 2: 0.35}
    assert SERIES[1].spread == pytest.approx(0.03)


def test_published_figures_sum_to_what_was_sent() -> None:
    """122,880 records of 512 bytes and what comes on top; a lost digit would show."""
    for published in kip794.PUBLISHED.values():
        assert 64e6 < sum(published.bytes_by_broker) < 67e6
        assert published.p50 < published.p95 < published.p99 < published.p99_9


def test_every_configuration_is_one_the_producer_takes() -> None:
    from trimtab.client.network.options import Options
    from trimtab.client.options import PRODUCER

    settings: list[Any] = [of.settings for of in kip794.CONFIGURATIONS.values()]
    settings += [of.settings for of in kip480.CONFIGURATIONS.values()]
    settings += [of.settings for of in kip1123.SCENES.values()]
    for given in (*settings, kip1123.OUTAGE):
        Options(PRODUCER, {"bootstrap.servers": "127.0.0.1:1", **given})


# KIP-480


def make_way(batches: float, requests: float, average: float) -> kip480.Measured:
    nodes = {
        0: {
            "batch-total": batches,
            "request-total": requests,
            "outgoing-byte-total": 1000 * requests,
        }
    }
    return kip480.Measured([make_run(average, 10, nodes), make_run(average, 30, nodes)])


def test_producers_are_added_up() -> None:
    measured = make_way(300, 150, 8)
    assert (measured.records, measured.requests) == (1800, 300)
    assert measured.records_per_batch == 3
    assert measured.bytes_per_request == 1000
    assert (measured.latency_ms["average"], measured.latency_ms["p99"]) == (8, 30)


def test_sticky_is_compared_with_round_robin() -> None:
    case = kip480.Case()
    measured = {
        (case, "round_robin"): make_way(900, 300, 20),
        (case, "sticky"): make_way(300, 150, 5),
    }
    assert kip480.describe_findings({"keys": {"no keys": case}}, measured) == [
        "With no keys, sticky's batches are 3.0 times those of round robin, its requests 0.50 times"
        " as many, its average latency 0.25 times as long."
    ]


# KIP-1123


def make_scene(name: str, records: tuple[int, ...]) -> kip1123.Measured:
    nodes = {broker: {"outgoing-byte-total": 1e6 * of} for broker, of in enumerate(records)}
    return kip1123.Measured(name, make_run(nodes=nodes), dict(enumerate(records)))


def make_outage() -> kip1123.Outage:
    """Ten records a second: into the rack until second 4, elsewhere until 8, then back."""
    samples = []
    at_home = across = 0
    for second in range(16):
        samples.append(kip1123.Sample(float(second), at_home, across))
        if 4 <= second < 8:
            across += 10
        else:
            at_home += 10
    return kip1123.Outage(make_run(), samples, (4.0, 8.0))


def test_bytes_are_counted_by_rack() -> None:
    anywhere = make_scene("anywhere", (1, 1, 1, 1, 1, 1))
    assert (anywhere.bytes_at_home, anywhere.bytes_across) == (2e6, 4e6)
    assert anywhere.share_across == pytest.approx(2 / 3)
    slow = make_scene("slow", (1, 0, 0, 3, 0, 0))
    assert (slow.bytes_across, slow.share_across, slow.slow_share) == (0, 0, 0.25)


def test_phases_of_the_outage_are_told_apart() -> None:
    outage = make_outage()
    assert [outage.share_across(phase) for phase in range(3)] == [0, 1, 0]


def test_a_phase_that_nobody_saw_is_an_error() -> None:
    outage = make_outage()
    short = kip1123.Outage(outage.run, outage.samples[:10], outage.changes)
    with pytest.raises(UsageError, match="send more --records"):
        short.share_across(2)


def test_findings_are_the_clauses_of_the_proposal() -> None:
    scenes = [
        make_scene("anywhere", (1, 1, 1, 1, 1, 1)),
        make_scene("aware", (3, 0, 0, 3, 0, 0)),
        make_scene("slow", (1, 0, 0, 3, 0, 0)),
    ]
    assert kip1123.describe_findings(scenes, make_outage()) == [
        "Without rack awareness 4.0 MB cross racks, with it 0.0 MB.",
        "Rack-aware, one slow: broker 0 gets 25% of the records that stay in the rack; "
        "0% of all records leave it.",
        "0% of the records leave the rack while it is healthy, 100% while it is unavailable, 0% "
        "when it is available again.",
    ]
    assert kip1123.describe_findings([], None) == []


def test_what_is_written_is_json_and_svg() -> None:
    scenes = [make_scene("aware", (3, 0, 0, 3, 0, 0))]
    outage = make_outage()
    result = json.loads(json.dumps(kip1123._summarize(scenes, outage, 900, ["so"])))
    assert result["outage"]["share_across"]["rack a unavailable"] == 1
    assert set(kip1123._draw(scenes, outage)) == {"shares.svg", "outage.svg"}
    assert set(kip1123._draw(scenes, None)) == {"shares.svg"}
    assert set(kip794._draw(SERIES)) == {"series1-shares.svg", "series1-latency.svg"}
    assert kip794._summarize(SERIES, 900, [])["runs"][0]["published"]["p99"] == 10992
