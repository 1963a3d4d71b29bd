from __future__ import annotations

import pytest

from trimtab.cli.dump_log.decoders import (
    DECODERS,
    decode_group,
    decode_metadata,
    decode_text,
    decode_transaction_state,
    escape,
    show_message,
)
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record, TimestampType
from trimtab.kafka.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    encode_embedded,
)
from trimtab.kafka.wire.messages.control_records import KRaftVersionRecord
from trimtab.kafka.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from trimtab.kafka.wire.messages.metadata_records import (
    FeatureLevelRecord,
    PartitionRecord,
    encode_record,
)
from trimtab.kafka.wire.messages.transaction_records import TransactionLogValue, encode_transaction


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("", 0, 0, 0, TimestampType.CREATE_TIME, key, value, ())


def test_text_that_is_no_text_is_base64_in_json() -> None:
    assert decode_text(record(b"k", b"\xff")).fields == {"key": "k", "valueBase64": "/w=="}
    assert decode_text(record(None, b"v")).words == ["payload: v"]


def test_escapes_leave_letters_and_tabs() -> None:
    assert escape("é\t\x1b[31m\x9b\n") == "é\t\\x1b[31m\\x9b\\x0a"


def test_a_committed_offset() -> None:
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=3))
    value = encode_value(OffsetCommitValue(offset=42, metadata="", commit_timestamp=7))
    assert decode_group(record(key, value)).words == [
        'key: {"type":"1","data":{"group":"g","topic":"t","partition":3}}',
        'payload: {"version":"3","data":{"offset":42,"leaderEpoch":-1,"metadata":"",'
        '"commitTimestamp":7}}',
    ]
    deleted = decode_group(record(key, None))
    assert (deleted.words[1], deleted.fields["value"]) == ("payload: <DELETE>", None)


def test_a_group_shows_what_its_members_read() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"])
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="t", partitions=[0, 1])]
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="m",
        members=[
            MemberMetadata(
                member_id="m",
                client_id="c",
                client_host="/h",
                session_timeout=1,
                subscription=encode_embedded(subscription, 1),
                assignment=encode_embedded(assignment, 0),
            )
        ],
    )
    shown = decode_group(record(encode_key(GroupMetadataKey(group="g")), encode_value(value)))
    assert (
        '"subscription":{"topics":["t"],"userData":null,"ownedPartitions":[]},'
        '"assignment":{"assignedPartitions":[{"topic":"t","partitions":[0,1]}],"userData":null}'
    ) in shown.words[1]


def test_a_transaction() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=9,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=5,
        transaction_start_timestamp_ms=-1,
    )
    shown = decode_transaction_state(record(*encode_transaction("tx", value)))
    assert shown.words[0] == 'key: {"type":"0","data":{"transactionalId":"tx"}}'
    assert '"transactionPartitions":null' in shown.words[1]
    assert decode_transaction_state(record(*encode_transaction("tx", None))).words[1] == (
        "payload: <DELETE>"
    )


def test_metadata() -> None:
    data = encode_record(FeatureLevelRecord(name="metadata.version", feature_level=25))
    assert decode_metadata(record(None, data)).words == [
        'payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{"name":"metadata.version",'
        '"featureLevel":25}}'
    ]


@pytest.mark.parametrize("decode", [decode_group, decode_transaction_state])
def test_a_type_of_a_newer_cluster_is_named(decode: object) -> None:
    assert callable(decode)
    shown = decode(record(b"\0\x63rest", b"\0\0"))
    assert shown.words == ["key: Unknown record type 99 at offset 0, skipping."]
    assert shown.fields["key"] == {"type": "99"}


@pytest.mark.parametrize("name", ["offsets", "transaction_log", "cluster_metadata"])
@pytest.mark.parametrize("key", [None, b"", b"\0"])
def test_a_record_of_another_topic_is_damage(name: str, key: bytes | None) -> None:
    with pytest.raises(CorruptData):
        DECODERS[name](record(key, None))


def test_names_are_kafkas() -> None:
    assert show_message(KRaftVersionRecord(k_raft_version=1), 0) == {
        "version": 0,
        "kRaftVersion": 1,
    }


def test_fields_of_other_versions_and_tagged_defaults_are_left_out() -> None:
    value = OffsetCommitValue(offset=1, metadata="m", commit_timestamp=2)
    assert list(show_message(value, 0)) == ["offset", "metadata", "commitTimestamp"]
    assert list(show_message(value, 3)) == ["offset", "leaderEpoch", "metadata", "commitTimestamp"]
    assert "topicId" not in show_message(value, 4)
    value = OffsetCommitValue(offset=1, metadata="m", commit_timestamp=2, topic_id=bytes(15) + b"1")
    assert show_message(value, 4)["topicId"] == "AAAAAAAAAAAAAAAAAAAAMQ"


def test_arrays_and_ids() -> None:
    shown = show_message(
        PartitionRecord(
            partition_id=0,
            topic_id=bytes(16),
            replicas=[1, 2],
            isr=[1],
            removing_replicas=[],
            adding_replicas=[],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        ),
        0,
    )
    assert (shown["topicId"], shown["replicas"], shown["isr"]) == ("A" * 22, [1, 2], [1])
