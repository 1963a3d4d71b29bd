"""The demo's figures, in the form of `summary.json`, and the sentences that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from lab.output import Latency, format_duration

OVERLOADED = 1.25
"""A broker that gets more than this multiple of an even share counts as overloaded."""

SPARED = 0.92
"""A broker that gets less than this multiple of an even share counts as spared."""

AVOIDED = 0.01
"""A way that sends a broker less than this share of its bytes counts as avoiding it."""

LEVEL = 0.05
"""In a level topic, no partition's bytes differ from the mean by more than this share of it."""

CARRIED = 0.95
"""A machine carries the load if the quickest way reaches this share of the offered rate."""

PROMPT_MS = 10.0
"""A machine carries the load if, in the best way, records are sent at most this late on average and
the median latency is at most this. It is half of the slow broker's delay: with longer latencies of
the machine itself, the slow broker would not stand out."""


class PartitionLoad(TypedDict):
    """One row of KIP-794's load table."""

    partition: int
    leader: int
    rack: str
    TotalBatches: int
    TotalBytes: int
    TotalRecords: int
    RawBytes: int | None
    NullKeyRecords: int | None
    FirstOffset: int | None
    LastOffset: int | None
    BytesPerBatch: float | None
    RecordsPerBatch: float | None
    ShareOfBytes: float


class WaySummary(TypedDict):
    """Every figure of one way of choosing a partition. Bytes are batches' bytes, shares 0 to 1."""

    title: str
    kip: str
    keyed: bool
    topic: str
    settings: dict[str, str | int | bool]
    records: int
    seconds: float
    records_per_second: float
    value_bytes_per_second: float
    send_lateness_ms: float
    latency_ms: Latency
    partitions: list[PartitionLoad]
    bytes_by_broker: dict[str, int]
    share_by_broker: dict[str, float]
    share_by_rack: dict[str, float]
    max_over_mean: float
    coefficient_of_variation: float


class FlightsRow(TypedDict):
    """Flights of one carrier from one airport. Delays are minutes, null if none took off."""

    carrier: str
    origin: str
    flights: int
    mean_departure_delay: float | None
    p95_departure_delay: float | None
    cancelled_share: float


class BatchSummary(TypedDict):
    """One micro-batch of the stream. Bytes are those in the log; lag is what it left unread."""

    records: int
    bytes: int
    lag_records: int
    lag_bytes: int | None
    seconds: float


class StreamSummary(TypedDict):
    """The figures of the streams."""

    topic: str
    limit_bytes: int
    window: str
    batches: list[BatchSummary]
    windows: list[dict[str, Any]]


class Summary(TypedDict):
    """The whole of `summary.json`."""

    trimtab: str
    records_per_way: int
    value_bytes_per_way: int
    target_bytes_per_second: int
    slow_broker: int
    slow_produce_ms: int
    client_rack: str
    seconds: dict[str, float]
    findings: list[str]
    ways: dict[str, WaySummary]
    stream: StreamSummary
    flights: list[FlightsRow]


def describe_findings(
    ways: Mapping[str, WaySummary], slow_broker: int, offered: float
) -> list[str]:
    """Three sentences from the figures: which ways overload the slow broker, which avoid it, which
    keep the partitions level.

    If the machine could not carry the load, a sentence about that comes first, and the others leave
    out latencies, because those depend on the machine then.

    Args:
        offered: bytes of values per second that each way should send.
    """
    too_much = _describe_machine(list(ways.values()), offered)
    is_carried = too_much is None
    spreading = [way for way in ways.values() if not way["keyed"]]
    keyed = [way for way in ways.values() if way["keyed"]]
    slow = str(slow_broker)
    spreading.sort(key=lambda way: way["share_by_broker"][slow])
    even = 1 / len(spreading[0]["share_by_broker"])
    over = [way for way in spreading if way["share_by_broker"][slow] > OVERLOADED * even]
    spared = [way for way in spreading if way["share_by_broker"][slow] < SPARED * even]
    level = [way for way in spreading if _distance_from_level(way) <= LEVEL]
    fullest = spreading[-1]
    tilted = [way for way in keyed if way["share_by_broker"][slow] > OVERLOADED * even]
    return [
        *([] if too_much is None else [too_much]),
        (
            _describe_overload(fullest, over[:-1], slow, even, is_carried)
            if over
            else f"{'Without keys no way' if tilted else 'No way of choosing a partition'} "
            f"overloads the slow broker {slow}: the most it gets is {_share(fullest, slow)} of the "
            f"bytes by {fullest['title']}, where {even:.0%} is even"
        )
        + "".join(f"; {way['title']} it gets {_share(way, slow)}" for way in tilted)
        + ".",
        _describe_sparing(spared, fullest, slow, is_carried)
        if spared
        else f"No way avoids broker {slow}: none sends it clearly less than an even share.",
        _describe_level(level, keyed),
    ]


def _describe_machine(ways: Sequence[WaySummary], offered: float) -> str | None:
    """A sentence that the machine could not carry the load; None if it could.

    A way that overloads a broker is slow for that reason. So only the best way counts: the highest
    rate, the least lateness, the lowest median latency.
    """
    achieved = max(way["value_bytes_per_second"] for way in ways)
    late = min(way["send_lateness_ms"] for way in ways)
    half = min(way["latency_ms"]["p50"] for way in ways)
    if achieved >= CARRIED * offered and late <= PROMPT_MS and half <= PROMPT_MS:
        return None
    return (
        f"This machine could not carry the load: of {offered / 1e6:.2f} MB/s offered to each way "
        f"the quickest had {achieved / 1e6:.2f} MB/s acknowledged, records were sent "
        f"at least {format_duration(late)} late on average, and even in the quickest way half of "
        f"them waited longer than {format_duration(half)}. So the latencies show the machine, not "
        "the ways, and so may the shares of ways that choose by load: run the demo again with two "
        "idle cores."
    )


def _describe_overload(
    worst: WaySummary, others: Sequence[WaySummary], slow: str, even: float, is_carried: bool
) -> str:
    times = worst["share_by_broker"][slow] / even
    also = _listed_with_share(list(reversed(others)), slow)
    sentence = (
        f"{_capitalized(worst['title'])} overloads the slow broker {slow}: it sends it "
        f"{_share(worst, slow)} of its bytes, {times:.1f} times an even share"
    )
    if is_carried:
        wait = format_duration(worst["latency_ms"]["p99"])
        sentence += f", and one record in a hundred waits longer than {wait}"
    return sentence + (f"; so do{'es' if len(others) == 1 else ''} {also}" if also else "")


def _describe_sparing(
    spared: Sequence[WaySummary], fullest: WaySummary, slow: str, is_carried: bool
) -> str:
    avoiding = [way for way in spared if way["share_by_broker"][slow] < AVOIDED]
    sparing = [way for way in spared if way not in avoiding]
    clauses = []
    if avoiding:
        clauses.append(f"{_listed_with_share(avoiding, slow)} avoid{_s(avoiding)} it altogether")
    if sparing:
        clauses.append(
            f"{_listed_with_share(sparing, slow)} send{_s(sparing)} it less than an even share"
        )
    sentence = _capitalized(", ".join(clauses))
    if not is_carried:
        return f"{sentence}."
    quickest = min(spared, key=lambda way: way["latency_ms"]["p99"])
    return (
        f"{sentence}: with {quickest['title']} one record in a hundred waits longer than "
        f"{format_duration(quickest['latency_ms']['p99'])}, against "
        f"{format_duration(fullest['latency_ms']['p99'])} with {fullest['title']}."
    )


def _describe_level(level: Sequence[WaySummary], keyed: Sequence[WaySummary]) -> str:
    if level:
        furthest = max(map(_distance_from_level, level))
        sentence = (
            f"{_capitalized(_listed([way['title'] for way in level]))} "
            f"keep{_s(level)} every partition within {furthest:.1%} of equal "
            "bytes, whether its broker is slow or not"
        )
    else:
        sentence = f"No way keeps every partition within {LEVEL:.0%} of equal bytes"
    tilts = [
        f"; {way['title']}, the fullest partition has {way['max_over_mean']:.1f} times the mean"
        for way in keyed
    ]
    return f"{sentence}{''.join(tilts)}."


def _distance_from_level(way: WaySummary) -> float:
    """The largest difference of a partition's bytes from the mean, as a share of the mean."""
    sizes = [partition["TotalBytes"] for partition in way["partitions"]]
    mean = sum(sizes) / len(sizes)
    return max(abs(size - mean) for size in sizes) / mean


def _share(way: WaySummary, broker: str) -> str:
    return f"{way['share_by_broker'][broker]:.0%}"


def _listed_with_share(ways: Sequence[WaySummary], broker: str) -> str:
    return _listed([f"{way['title']} ({_share(way, broker)})" for way in ways])


def _s(subjects: Sequence[object]) -> str:
    """The ending of a verb with these subjects."""
    return "s" if len(subjects) == 1 else ""


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), *items[-1:]] if len(items) > 1 else items)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
