"""Counts and times of requests (`trimtab.cluster.server.request_metrics_cy`), in both forms."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages import APIS

PRODUCE, METADATA = 0, 3


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("took_ms", "bucket"), [(0.0, 0), (0.1, 0), (0.11, 1), (5.0, 5), (9999.0, 15), (10_001.0, 16)]
)
def test_a_time_counts_in_the_first_bucket_that_holds_it(
    in_form: Callable[[str], ModuleType], took_ms: float, bucket: int
) -> None:
    clock = Clock()
    module = in_form("trimtab.cluster.server.request_metrics_cy")
    requests = module.RequestMetrics({PRODUCE: APIS[PRODUCE], METADATA: APIS[METADATA]}, clock)
    clock.now_s = took_ms / 1000
    requests.answered(RequestHeader(PRODUCE, 9, 1, None, 0, "", 0.0))
    requests.answered(RequestHeader(METADATA, 13, 1, None, 0, "", clock.now_s))
    api = requests.apis[PRODUCE]
    assert api.buckets == [int(each == bucket) for each in range(17)]
    assert api.total_ms == pytest.approx(took_ms)
    assert [version for version, count in enumerate(api.requests) if count] == [9]
    assert requests.apis[METADATA].buckets[0] == 1
    assert requests.apis[METADATA].requests[13] == 1
