"""Control records against the bytes that Kafka 4.3.0 writes for them."""

from __future__ import annotations

import pytest

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.messages.control_records import (
    ControlRecord,
    ControlRecordType,
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    ReachableVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VotersRecord,
    decode_control_key,
    decode_control_record,
    encode_control_key,
    encode_control_record,
)

# Printed by ControlRecordType.recordKey and MessageUtil.toByteBufferAccessor of kafka-clients.
WRITTEN_BY_KAFKA: list[tuple[ControlRecord, str, str]] = [
    (
        LeaderChangeMessage(
            leader_id=3000,
            voters=[Voter(voter_id=3000), Voter(voter_id=3001)],
            granting_voters=[Voter(voter_id=3000)],
        ),
        "00000002",
        "000000000bb80300000bb80000000bb9000200000bb80000",
    ),
    (
        SnapshotHeaderRecord(last_contained_log_timestamp=1_700_000_000_000),
        "00000003",
        "00000000018bcfe5680000",
    ),
    (SnapshotFooterRecord(), "00000004", "000000"),
    (KRaftVersionRecord(k_raft_version=1), "00000005", "0000000100"),
    (
        VotersRecord(
            voters=[
                ReachableVoter(
                    voter_id=1,
                    voter_directory_id=(1).to_bytes(8) + (2).to_bytes(8),
                    endpoints=[Endpoint(name="CONTROLLER", host="a", port=40000)],
                    k_raft_version_feature=KRaftVersionFeature(
                        min_supported_version=0, max_supported_version=1
                    ),
                )
            ]
        ),
        "00000006",
        "000002000000010000000000000001000000000000000202"
        "0b434f4e54524f4c4c455202619c400000000001000000",
    ),
]


@pytest.mark.parametrize(
    ("record", "key", "value"),
    WRITTEN_BY_KAFKA,
    ids=[type(record).__name__ for record, *_ in WRITTEN_BY_KAFKA],
)
def test_control_records_are_the_bytes_that_kafka_writes(
    record: ControlRecord, key: str, value: str
) -> None:
    written = bytes.fromhex(key), bytes.fromhex(value)
    assert encode_control_record(record) == written
    assert decode_control_record(*written) == record


@pytest.mark.parametrize("kind", ControlRecordType)
def test_keys_of_later_versions_are_read_by_their_first_four_bytes(kind: ControlRecordType) -> None:
    assert decode_control_key(encode_control_key(kind)) == kind
    assert decode_control_key(b"\x00\x01" + kind.to_bytes(2) + b"more") == kind


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x02"])
def test_a_key_that_is_short_or_of_negative_version_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptData, match=r"control record: (a )?key"):
        decode_control_key(key)


def test_a_transaction_marker_is_no_record_of_the_quorum() -> None:
    with pytest.raises(CorruptData, match="type 1"):
        decode_control_record(encode_control_key(ControlRecordType.COMMIT), bytes(6))
