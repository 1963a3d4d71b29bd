"""Snapshots of clusters that refuse some requests, and their rows as Arrow tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.spark.load import snapshots
from trimtab.spark.load.inputs import KEYS, to_arrow
from trimtab.spark.load.snapshots import SCHEMAS, Snapshot, take_snapshot, to_tables

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


class FakeAdmin:
    """Two brokers without topics; refuses the requests in `refused`."""

    refused: dict[str, BrokerError]

    def __init__(self, _: object) -> None: ...

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _answer(self, request: str, answer: Any) -> Any:
        if request in self.refused:
            raise self.refused[request]
        return answer

    def cluster(self) -> Any:
        nodes = [SimpleNamespace(id=id, host="h", port=9092, rack=None) for id in (1, 2)]
        return SimpleNamespace(nodes=nodes)

    def describe_topics(self, _: object) -> dict[str, Any]:
        return {}

    def describe_log_dirs(self) -> Any:
        directory = SimpleNamespace(path="/d", logs={}, total_bytes=9, usable_bytes=5)
        return self._answer("logs", {1: [directory], 2: []})

    def list_group_offsets(self, group: str) -> Any:
        return self._answer(group, {TopicPartition("t", 0): OffsetAndMetadata(7)})

    def describe_configs(self, _: str, broker: int) -> Any:
        option = SimpleNamespace(name="max.broker.partitions", value="50")
        return self._answer("limits", [option])


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> dict[str, BrokerError]:
    refused: dict[str, BrokerError] = {}
    monkeypatch.setattr(FakeAdmin, "refused", refused, raising=False)
    monkeypatch.setattr(snapshots, "Admin", FakeAdmin)
    return refused


def test_requests_that_are_not_authorized_leave_out_their_rows_alone(
    refused: dict[str, BrokerError],
) -> None:
    everything = take_snapshot({}, groups=["g", "h"], now=NOON)
    assert [row[1] for row in everything.group_offsets] == ["g", "h"]
    assert [row[-2:] for row in everything.brokers] == [(50, None)] * 2
    refused["logs"] = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "", "broker 1")
    refused["limits"] = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "", "broker 2")
    refused["g"] = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "", "group g")
    denied: list[BrokerError] = []
    part = take_snapshot({}, groups=["g", "h"], now=NOON, denied=denied.append)
    assert denied == [refused["logs"], refused["g"], refused["limits"]]
    assert part == everything._replace(
        directories=[],
        brokers=[(*row[:-2], None, None) for row in everything.brokers],
        group_offsets=everything.group_offsets[1:],
    )
    with pytest.raises(BrokerError, match="broker 1: CLUSTER_AUTHORIZATION_FAILED"):
        take_snapshot({}, now=NOON)


def test_other_errors_are_raised(refused: dict[str, BrokerError]) -> None:
    refused["g"] = BrokerError(ErrorCode.UNSUPPORTED_VERSION, "", "group g")
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
        take_snapshot({}, groups=["g"], denied=lambda _: None)


@pytest.mark.usefixtures("refused")
def test_the_time_of_a_snapshot_is_in_utc() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    local = NOON.astimezone().replace(tzinfo=None)
    for now in (there, local):
        (at, *_), _ = take_snapshot({}, now=now).brokers
        assert (at, at.tzinfo) == (NOON, UTC)


def test_rows_are_arrow_tables_of_every_schema() -> None:
    snapshot = Snapshot(
        partitions=[(NOON, "t", 0, -1, None, [1, 2], ["a", None], [])],
        offsets=[(NOON, "t", 0, 5, 2**40)],
        brokers=[(NOON, 1, "h", 9092, None, None, 7)],
        directories=[],
        replicas=[(NOON, 1, "/d", "t", 0, 2**40, 0, False)],
        group_offsets=[(NOON, "g", "t", 0, 6)],
    )
    tables = to_tables(snapshot)
    for table, rows, schema in zip(tables, snapshot, SCHEMAS, strict=True):
        names = [column.split()[0] for column in schema.split(", ")]
        assert table.to_pylist() == [dict(zip(names, row, strict=True)) for row in rows]
        assert table.column_names == names
        assert table.schema.field("takenAt").type == pa.timestamp("us", "UTC")
    assert to_arrow([], KEYS).schema.field("key").type == pa.binary()
    with pytest.raises(ValueError, match="shorter"):
        to_arrow([("t", 0), ("t",)], "topic string, partition int")
