"""Where a stream stands, as JSON."""

from __future__ import annotations

import json

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.offsets import STATE, StreamOffset, read_offset, show_id


def test_the_json_is_that_of_sparks_kafka_source_in_one_order_always() -> None:
    offsets = {TopicPartition("t", 10): 1, TopicPartition("a", 0): 5, TopicPartition("t", 9): 2}
    assert json.dumps(StreamOffset(offsets).to_json()) == '{"a": {"0": 5}, "t": {"9": 2, "10": 1}}'
    assert read_offset({"a": {"0": 5}, "t": {"10": 1, "9": 2}}).offsets == offsets


def test_what_is_remembered_besides_is_under_one_key_that_no_topic_can_have() -> None:
    offset = StreamOffset(
        {TopicPartition("t", 0): 5}, {"t": "ERERERERERERERERERERERE"}, {TopicPartition("t", 0): 2}
    )
    written = json.loads(json.dumps(offset.to_json()))
    assert written == {
        "t": {"0": 5},
        STATE: {"begins": {"t": {"0": 2}}, "ids": {"t": "ERERERERERERERERERERERE"}},
    }
    assert ":" in STATE
    assert read_offset(written) == offset


def test_topic_ids_are_shown_as_kafka_shows_them() -> None:
    assert show_id(b"\x11" * 16) == "EREREREREREREREREREREQ"
    assert show_id(bytes(16)) == ""


@pytest.mark.parametrize("written", [{"t": 5}, {"t": {"x": 5}}, {"index": None}, {STATE: []}])
def test_an_offset_of_another_source_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="use another checkpointLocation"):
        read_offset(written)
