"""Committed offsets, of which some wait for the end of a transaction."""

from __future__ import annotations

from random import Random

import pytest

from trimtab.cluster.coordinator.offsets import Committed, GroupOffsets, offset_key
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.group_records import OffsetCommitValue

pytestmark = pytest.mark.kip(98)

PARTITIONS = [TopicPartition("t", index) for index in range(2)]
GROUPS = ("g", "h")
NOBODY = -1


def value(offset: int) -> OffsetCommitValue:
    return Committed(offset, -1, "", 0).to_record()


@pytest.mark.parametrize("seed", range(200))
def test_the_last_record_that_is_decided_counts(seed: int) -> None:
    """Compared with all records of the log, each with its producer."""
    random = Random(seed)
    offsets = GroupOffsets()
    log: list[tuple[str, TopicPartition, int | None, int]] = []
    for step in range(60):
        producer = random.choice((NOBODY, NOBODY, 7, 8, 9))
        if producer != NOBODY and random.random() < 0.3:
            is_commit = random.random() < 0.5
            offsets.end_transaction(producer, is_commit)
            log = [
                (*record[:3], NOBODY) if record[3] == producer else record
                for record in log
                if is_commit or record[3] != producer
            ]
        else:
            group, partition = random.choice(GROUPS), random.choice(PARTITIONS)
            offset = None if producer == NOBODY and random.random() < 0.2 else step
            record = None if offset is None else value(offset)
            offsets.replay(offset_key(group, partition), record, producer)
            log.append((group, partition, offset, producer))
        for group in GROUPS:
            decided = {each[1]: each[2] for each in log if each[0] == group and each[3] == NOBODY}
            expected = {partition: at for partition, at in decided.items() if at is not None}
            assert {key: each.offset for key, each in offsets.of(group).items()} == expected
            waiting = {each[1] for each in log if each[0] == group and each[3] != NOBODY}
            assert set(offsets.undecided(group)) == waiting
            assert set(offsets.partitions(group)) == expected.keys() | waiting
            assert (group in offsets.groups()) == bool(expected or waiting)
    for producer in (7, 8, 9):
        offsets.end_transaction(producer, False)
    assert offsets._undecided == {}
    assert offsets._producers == {}


def test_an_offset_does_not_expire_while_another_is_undecided() -> None:
    offsets = GroupOffsets()
    key = offset_key("g", PARTITIONS[0])
    offsets.replay(key, value(1))
    offsets.replay(key, value(2), 7)
    for ends, expired in ((False, []), (True, [key])):
        if ends:
            offsets.end_transaction(7, False)
        found = offsets.expired("g", PARTITIONS, 10, lambda *_: False)
        assert list(found) == expired
