from __future__ import annotations

from trimtab.cli.dump_log.message_json import show_message
from trimtab.wire.messages.control_records import KRaftVersionRecord
from trimtab.wire.messages.group_records import OffsetCommitValue
from trimtab.wire.messages.metadata_records import PartitionRecord


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
