"""A member of a classic group, its session, and its place in a record."""

from __future__ import annotations

import pytest

from trimtab.cluster.coordinator.classic_member import ClassicMember
from trimtab.cluster.coordinator.effects import Caller, Now
from trimtab.kafka.wire.messages.group_records import MemberMetadata

CALLER = Caller(None, 9, "app", "/10.0.0.1")


@pytest.fixture
def member() -> ClassicMember:
    member = ClassicMember("app-1", "first", "app", "/10.0.0.1")
    member.session_s, member.rebalance_s, member.deadline = 10.0, 300.0, 10.0
    member.support({"range": b"topics", "sticky": b"topics and more"})
    member.assignment = b"0, 1"
    return member


def test_is_read_as_it_was_written(member: ClassicMember) -> None:
    record = member.write("sticky")
    assert record.subscription == b"topics and more"
    assert ClassicMember.read(record, "sticky").write("sticky") == record


def test_an_old_record_without_a_rebalance_timeout_has_that_of_the_session() -> None:
    record = MemberMetadata(
        member_id="app-1",
        client_id="app",
        client_host="/10.0.0.1",
        session_timeout=10_000,
        subscription=b"",
        assignment=b"",
    )
    assert ClassicMember.read(record, "range").rebalance_s == 10.0


def test_is_over_after_its_session(member: ClassicMember) -> None:
    assert [member.is_over(Now(second, 0)) for second in (9.9, 10.0)] == [False, True]


@pytest.mark.parametrize("waits_for", ["joining", "syncing"])
def test_is_not_over_while_it_waits(member: ClassicMember, waits_for: str) -> None:
    setattr(member, waits_for, CALLER)
    assert not member.is_over(Now(11.0, 0))


def test_is_over_while_it_waits_for_its_first_generation(member: ClassicMember) -> None:
    member.joining, member.is_new = CALLER, True
    assert member.is_over(Now(11.0, 0))


def test_its_size_is_enough_for_any_of_its_protocols(member: ClassicMember) -> None:
    member.assignment = b""
    for name in member.protocols:
        record = member.write(name)
        texts = (record.member_id, record.group_instance_id, record.client_id, record.client_host)
        numbers = 2 * 4  # the time-outs; lengths take at most 4 bytes each
        lengths = 4 * (len(texts) + 2)
        assert member.size >= sum(map(len, map(str, texts))) + len(record.subscription) + (
            numbers + lengths
        )
