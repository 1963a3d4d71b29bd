# mypy: allow-untyped-decorators, no-warn-return-any
"""Counts and times of the requests that a node answers, by API.

Source: Kafka's `RequestMetrics`. Kafka estimates quantiles from a sample; here a histogram counts
all requests, and Prometheus computes quantiles from it, also over several nodes.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cython

if TYPE_CHECKING:
    from trimtab.kafka.wire.framing import RequestHeader
    from trimtab.kafka.wire.messages import Api

BOUNDS_MS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1000.0, 2500.0, 5000.0, 10000.0),
)
"""The upper bounds of the histogram's buckets; one more bucket has no bound."""


@cython.final
@cython.cclass
class ApiMetrics:
    """The requests of one API.

    Attributes:
        requests: answered requests; the index is their version.
        buckets: answered requests by time, as `BOUNDS_MS` divides it.
        total_ms: the sum of the times.
    """

    requests = cython.declare(list[Any], visibility="readonly")
    buckets = cython.declare(list[Any], visibility="readonly")
    total_ms = cython.declare(cython.double, visibility="readonly")

    def __init__(self, max_version: int) -> None:
        self.requests = [0] * (max_version + 1)
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0.0


@cython.final
@cython.cclass
class RequestMetrics:
    """The requests of a node, from the moment it begins to serve one until it has the response and
    passes it to the system, or until it knows that there is none to send (acks=0).

    Args:
        apis: those that it serves, by key.
        clock: seconds that never go back, measured at each call.

    Attributes:
        apis: by key.
    """

    apis = cython.declare(dict[int, ApiMetrics], visibility="readonly")
    clock = cython.declare(object, visibility="readonly")
    _bounds: tuple[Any, ...]

    def __init__(self, apis: Mapping[int, "Api"], clock: Callable[[], float]) -> None:
        self.apis = {key: ApiMetrics(api.max_version) for key, api in apis.items()}
        self.clock = clock
        self._bounds = BOUNDS_MS

    def answered(self, header: "RequestHeader") -> None:
        """Count a request that was answered now."""
        began: cython.double = header.received_s
        ended: cython.double = self.clock()
        took_ms: cython.double = (ended - began) * 1000
        api: ApiMetrics = self.apis[header.api_key]
        api.total_ms += took_ms
        bounds: tuple[Any, ...] = self._bounds
        bucket: cython.Py_ssize_t = 0
        bound: cython.double
        for bound in bounds:
            if took_ms <= bound:
                break
            bucket += 1
        api.buckets[bucket] += 1
        version: cython.Py_ssize_t = header.api_version
        api.requests[version] += 1
