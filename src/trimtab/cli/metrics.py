"""A client's metrics as Kafka's tools print them (`--print-metrics`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

_FETCHES: Final = "consumer-fetch-manager-metrics"
_PARTITIONS: Final = "consumer-fetch-manager-partition-metrics"
_KAFKAS_GROUPS: Final = {"consumer-fetch-manager-topic-metrics": _FETCHES, _PARTITIONS: _FETCHES}
"""Kafka's groups, where a client's snapshot has a group for each kind of tags."""


def list_metrics(metrics: Mapping[str, Mapping[str, Any]], client_id: str) -> dict[str, Any]:
    """A client's metrics by the names that Kafka's tools print: group, metric, tags.

    In the groups of nodes, topics and partitions these become tags.
    """
    listed = {}
    for group, entries in metrics.items():
        kafkas = _KAFKAS_GROUPS.get(group, group)
        for name, value in entries.items():
            if isinstance(value, Mapping):
                tags = f"{{client-id={client_id}, {_tag(group, name)}}}"
                listed.update({f"{kafkas}:{each}:{tags}": of for each, of in value.items()})
            else:
                listed[f"{kafkas}:{name}:{{client-id={client_id}}}"] = value
    return listed


def _tag(group: str, name: str) -> str:
    if group == _PARTITIONS:
        topic, _, partition = name.rpartition("-")
        return f"topic={topic}, partition={partition}"
    return f"{'node-id' if group.endswith('-node-metrics') else 'topic'}={name}"


def print_metrics(listed: Mapping[str, Any]) -> None:
    """One metric a line, aligned as Kafka's tools do."""
    width = max(map(len, listed))
    print(f"\n{'Metric Name':<{width}}   Value")
    for name, value in sorted(listed.items()):
        print(f"{name:<{width}} : {_word_value(value)}")


def describe_metrics(listed: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON, which has only finite numbers: others are null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in sorted(listed.items())
    }


def _word_value(value: object) -> str:
    """A number as Java writes a double; any other value as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if math.isfinite(value):
        return f"{value:.3f}"
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
