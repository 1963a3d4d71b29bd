"""Which brokers are slow: the probes say so, and one other sign does.

Two thresholds and two sources, as one alone gives false alarms: a probe may meet a pause of the
client, and a follower may be behind because its own disk is busy. If more than a tenth of the
brokers seem slow, the cause is elsewhere, such as the network, and nobody is called slow.

Source: Cruise Control's SlowBrokerFinder, whose tenth this is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Final, NamedTuple

from trimtab.client.measure.followers import Blame

RECENT: Final = 8
"""Probes that are judged: four seconds at two a second."""
_TIMES_PEERS: Final = 5
_LEAST_S: Final = 0.020
"""A broker that answers faster is not slow, whatever the others do."""
_LATE_FETCH_S: Final = 2.0
"""A broker fetches metadata at least every half second."""


_FIRST_REST_S: Final = 300.0
_LONGEST_REST_S: Final = 6 * 3600.0


class ProbeTimes(NamedTuple):
    """How long a broker takes to store a record.

    Attributes:
        recent: seconds of the last probes, eight at most; one that is not answered counts with the
            time that it has waited.
        usual_p99: the 99th percentile of earlier times; None if not known.
    """

    recent: Sequence[float]
    usual_p99: float | None = None


class SlowBrokers(NamedTuple):
    """What the probes and the signs say, each broker with the reason.

    Attributes:
        slow: the brokers to relieve: a tenth of all at most, or one.
        alarm: the brokers that seem slow, if they are more than that; then `slow` is empty.
        suspected: brokers with slow probes and no other sign.
    """

    slow: Mapping[int, str]
    alarm: Mapping[int, str]
    suspected: Mapping[int, str]


def find_slow(probes: Mapping[int, ProbeTimes], signs: Mapping[int, Sequence[str]]) -> SlowBrokers:
    """The brokers whose probes are slow: the median of the last eight exceeds 5 times the peers'
    median, the broker's own usual 99th percentile, and 20 ms.

    Args:
        probes: of every live broker; one with fewer than eight is not judged.
        signs: what else speaks for each broker's slowness, as `collect_signs` returns it.
    """
    medians = {
        broker: median(times.recent)
        for broker, times in probes.items()
        if len(times.recent) >= RECENT
    }
    slow: dict[int, str] = {}
    suspected: dict[int, str] = {}
    for broker, own in sorted(medians.items()):
        if own <= _LEAST_S:
            continue
        peers = [other for peer, other in medians.items() if peer != broker]
        usual_of_peers = median(peers) if peers else 0.0
        usual = probes[broker].usual_p99 or 0.0
        if own <= max(_TIMES_PEERS * usual_of_peers, usual):
            continue
        why = f"probes take {1000 * own:.0f} ms, those of its peers {1000 * usual_of_peers:.1f} ms"
        if signs.get(broker):
            slow[broker] = "; ".join([why, *signs[broker]])
        else:
            suspected[broker] = why
    if len(slow) > max(1, len(probes) // 10):
        return SlowBrokers({}, slow, suspected)
    return SlowBrokers(slow, {}, suspected)


class SlowRests:
    """Brokers that were slow, and so get no leaders for a while.

    A broker that is slow only under load would soon lose them again: each time its rest is twice as
    long, from five minutes to six hours.
    """

    def __init__(self) -> None:
        self._ends: dict[int, tuple[float, float]] = {}
        """By broker when its rest ends, and how long it is."""

    def note(self, slow: Iterable[int], now: float) -> None:
        """These brokers are slow."""
        for broker in slow:
            end, rest = self._ends.get(broker, (-inf, 0.0))
            if now > end + _LONGEST_REST_S:
                rest = _FIRST_REST_S
            elif now > end:
                rest = min(2 * rest, _LONGEST_REST_S)
            self._ends[broker] = now + rest, rest

    def resting(self, now: float) -> frozenset[int]:
        """The brokers that are slow, or were so a while ago."""
        return frozenset(broker for broker, (end, _) in self._ends.items() if now <= end)


def collect_signs(
    blame: Blame | None = None,
    round_trips: Mapping[int, float] | None = None,
    fetch_ages: Mapping[int, float] | None = None,
) -> dict[int, list[str]]:
    """What speaks for the slowness of each broker, besides its probes.

    Args:
        blame: from the lags of followers.
        round_trips: seconds that a poll took, by broker, or has waited.
        fetch_ages: seconds since each broker's last fetch of metadata.
    """
    signs: dict[int, list[str]] = {}
    if blame is not None:
        for broker in sorted(blame.leaders):
            signs.setdefault(broker, []).append("all its followers fall behind")
        for broker in sorted(blame.followers):
            signs.setdefault(broker, []).append("it falls behind all its leaders")
    trips = round_trips or {}
    for broker, trip in sorted(trips.items()):
        if trip <= _LEAST_S:
            continue
        peers = [other for peer, other in trips.items() if peer != broker]
        if peers and trip > _TIMES_PEERS * median(peers):
            signs.setdefault(broker, []).append(f"a poll takes {1000 * trip:.0f} ms")
    for broker, age in sorted((fetch_ages or {}).items()):
        if age > _LATE_FETCH_S:
            signs.setdefault(broker, []).append(f"its last fetch of metadata was {age:.1f} s ago")
    return signs
