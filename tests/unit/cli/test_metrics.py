from __future__ import annotations

import math
import re

import pytest

from trimtab.cli.metrics import describe_metrics, list_metrics, print_metrics


def test_metrics_are_named_as_kafkas_tools_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    metrics: dict[str, dict[str, object]] = {
        "producer-metrics": {"record-send-total": 5.0, "batch-size-avg": float("nan")},
        "producer-node-metrics": {"node-0": {"outgoing-byte-total": 1200}},
        "producer-topic-metrics": {"t": {"byte-total": 1100.5}},
        "partitioner-metrics": {"t": {"switch-total": 3}},
        "consumer-fetch-manager-metrics": {"fetch-total": 1},
        "consumer-fetch-manager-topic-metrics": {"t-u": {"bytes-consumed-total": 9.0}},
        "consumer-fetch-manager-partition-metrics": {"t-u-3": {"records-lag": 2}},
        "app-info": {"version": "0.1"},
    }
    print_metrics(list_metrics(metrics, "perf"))
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(" +", " ", line) for line in lines] == [
        "",
        "Metric Name Value",
        "app-info:version:{client-id=perf} : 0.1",
        "consumer-fetch-manager-metrics:bytes-consumed-total:{client-id=perf, topic=t-u} : 9.000",
        "consumer-fetch-manager-metrics:fetch-total:{client-id=perf} : 1.000",
        "consumer-fetch-manager-metrics:records-lag:{client-id=perf, topic=t-u, partition=3} "
        ": 2.000",
        "partitioner-metrics:switch-total:{client-id=perf, topic=t} : 3.000",
        "producer-metrics:batch-size-avg:{client-id=perf} : NaN",
        "producer-metrics:record-send-total:{client-id=perf} : 5.000",
        "producer-node-metrics:outgoing-byte-total:{client-id=perf, node-id=node-0} : 1200.000",
        "producer-topic-metrics:byte-total:{client-id=perf, topic=t} : 1100.500",
    ]
    assert len({line.rindex(" : ") for line in lines[2:]}) == 1


def test_what_is_no_finite_number_is_null_in_json() -> None:
    listed = {"b": math.nan, "a": 1.5, "c": "text"}
    assert list(describe_metrics(listed).items()) == [("a", 1.5), ("b", None), ("c", "text")]
