"""Counts and times of the requests that a node answers, by API.

Source: Kafka's `RequestMetrics`. Kafka estimates quantiles from a sample; here a histogram counts
all requests, and Prometheus computes quantiles from it, also over several nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trimtab.wire.framing import RequestHeader

BOUNDS_MS: Final = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1000.0, 2500.0, 5000.0, 10000.0),
)
"""The upper bounds of the histogram's buckets; one more bucket has no bound."""


class ApiMetrics:
    """The requests of one API.

    Attributes:
        requests: answered requests by version.
        buckets: answered requests by time, as `BOUNDS_MS` divides it.
        total_ms: the sum of the times.
    """

    __slots__ = ("buckets", "requests", "total_ms")

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0.0


class RequestMetrics:
    """The requests of a node, from the moment it begins to serve one until it has the response and
    passes it to the system, or until it knows that there is none to send (acks=0).

    Args:
        apis: the keys of the APIs that it serves.
        clock: seconds that never go back, measured at each call.

    Attributes:
        apis: by key.
    """

    __slots__ = ("apis", "clock")

    def __init__(self, apis: Iterable[int], clock: Callable[[], float]) -> None:
        self.apis = {key: ApiMetrics() for key in apis}
        self.clock = clock

    def answered(self, header: RequestHeader) -> None:
        """Count a request that was answered now."""
        took_ms = (self.clock() - header.received_s) * 1000
        api = self.apis[header.api_key]
        api.total_ms += took_ms
        api.buckets[bisect_left(BOUNDS_MS, took_ms)] += 1
        requests, version = api.requests, header.api_version
        requests[version] = requests.get(version, 0) + 1
