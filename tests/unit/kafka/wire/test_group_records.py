"""The bytes of records of `__consumer_offsets`, which Kafka's tools read."""

from __future__ import annotations

import pytest

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_key,
    encode_value,
)

KEY = OffsetCommitKey(group="g", topic="t", partition=3)
VALUE = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=4,
    protocol="range",
    leader="a",
    current_state_timestamp=11,
    members=[
        MemberMetadata(
            member_id="a",
            group_instance_id="i",
            client_id="c",
            client_host="/h",
            rebalance_timeout=1,
            session_timeout=2,
            subscription=b"s",
            assignment=b"a",
        )
    ],
)


def test_bytes_are_kafkas() -> None:
    assert encode_key(KEY) == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert encode_value(VALUE) == (
        b"\0\3"
        + (7).to_bytes(8, "big")
        + (2).to_bytes(4, "big")
        + b"\0\1m"
        + (9).to_bytes(8, "big")
    )
    assert encode_key(GroupMetadataKey(group="g")) == b"\0\2\0\1g"


CURRENT_KEY = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
CURRENT = ConsumerGroupCurrentMemberAssignmentValue(
    member_epoch=3,
    previous_member_epoch=2,
    state=1,
    assigned_partitions=[
        TopicPartitions(topic_id=b"i" * 16, partitions=[0], assignment_epochs=[2])
    ],
    partitions_pending_revocation=[TopicPartitions(topic_id=b"i" * 16, partitions=[1])],
)


def test_bytes_of_consumer_groups_are_kafkas() -> None:
    assert encode_key(CURRENT_KEY) == b"\0\x08\0\1g\0\1m"
    assert encode_value(CURRENT) == (
        b"\0\0\0\0\0\3\0\0\0\2\1"
        + (b"\2" + b"i" * 16 + b"\2\0\0\0\0" + b"\1\0\5\2\0\0\0\2")
        + (b"\2" + b"i" * 16 + b"\2\0\0\0\1\0")
        + b"\0"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, VALUE),
        (KEY, None),
        (GroupMetadataKey(group="g"), GROUP),
        (CURRENT_KEY, CURRENT),
        (CURRENT_KEY, None),
    ],
)
def test_records_are_read_as_they_were_written(key: object, value: object) -> None:
    encoded = encode_value(value)  # type: ignore[arg-type]
    assert decode_record(encode_key(key), encoded) == (key, value)  # type: ignore[arg-type]


def test_values_of_older_versions_are_read() -> None:
    old = b"\0\1" + (7).to_bytes(8, "big") + b"\0\1m" + (9).to_bytes(8, "big") + bytes(8)
    decoded = decode_record(encode_key(KEY), old)
    assert decoded is not None
    assert decoded[1] == OffsetCommitValue(
        offset=7, metadata="m", commit_timestamp=9, expire_timestamp=0
    )


def test_records_of_other_kinds_of_groups_are_passed_over() -> None:
    assert decode_record(b"\0\x0b\0\1g", b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0", b""), (b"\0\1", None), (b"\0\1\0\1g", None), (b"\0\2\0\1g", b"\0\x09")],
)
def test_damaged_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptData):
        decode_record(key, value)
