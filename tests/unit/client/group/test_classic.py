"""Members of classic groups that are static, fenced or left behind, against trimtab's brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.group.test_group_consumer import QUICK, consumer, fill, partitions, read
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.client.group.classic import ClassicMembership
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition

__all__ = ["lab"]


def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", group_instance_id="one") as one:
            one.subscribe(["t"])
            assert await read(one, 40) == list(range(40))
            assert isinstance(one._group and one._group._member, ClassicMembership)
            generation = one.group_metadata().generation_id
        async with consumer(lab, "again", group_instance_id="one") as again:
            again.subscribe(["t"])
            await again.poll(5000)
            assert again.assignment() == partitions(0, 1, 2, 3)
            assert again.group_metadata().generation_id == generation

    lab.run(scenario, config=QUICK)


def test_the_older_of_two_members_with_one_instance_id_is_told_for_good(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "old", group_instance_id="i") as old:
            old.subscribe(["t"])
            assert len(await read(old, 40)) == 40
            async with consumer(lab, "new", group_instance_id="i") as new:
                new.subscribe(["t"])
                await new.poll(5000)
                await asyncio.sleep(10)
                for _ in range(2):
                    with pytest.raises(BrokerError) as raised:
                        await old.poll(1000)
                    assert raised.value.code is ErrorCode.FENCED_INSTANCE_ID
                assert new.assignment() == partitions(0, 1, 2, 3)

    lab.run(scenario, config=QUICK)


def test_members_without_a_common_assignor_are_refused(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", partition_assignment_strategy="range") as one:
            one.subscribe(["t"])
            assert len(await read(one, 40)) == 40
            async with consumer(lab, "two", partition_assignment_strategy="sticky") as two:
                two.subscribe(["t"])
                with pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
                    await two.poll(5000)

    lab.run(scenario, config=QUICK)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ],
)
def test_a_member_without_which_the_group_went_on_joins_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    ask = ClassicMembership._ask_to_sync
    refused = 0

    async def refuse_once(member: ClassicMembership, *given: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise BrokerError(code, "", "group g")
        return await ask(member, *given)

    monkeypatch.setattr(ClassicMembership, "_ask_to_sync", refuse_once)

    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab) as reader:
            reader.subscribe(["t"])
            assert await read(reader, 40) == list(range(40))
            groups: Any = reader.metrics()
            measured = groups["consumer-coordinator-metrics"]
            assert (measured["failed-rebalance-total"], measured["rebalance-total"]) == (1, 1)

    lab.run(scenario, config=QUICK)


def test_a_member_that_is_removed_before_it_lets_go_has_lost_its_partitions(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        options: dict[str, Any] = {
            "partition_assignment_strategy": "cooperative-sticky",
            "max_poll_interval_ms": 9000,
        }
        lost: list[TopicPartition] = []
        async with consumer(lab, "slow", **options, enable_auto_commit=False) as slow:
            slow.subscribe(["t"], on_lost=lost.extend)
            assert len(await read(slow, 40)) == 40
            async with consumer(lab, "quick", **options) as quick:
                quick.subscribe(["t"])
                assert len(await read(quick, 40)) == 40, "the slow one does not poll"
                await asyncio.sleep(10)  # a heartbeat of the slow one is refused
                assert lost == []
                await slow.poll(100)
                assert set(lost) == partitions(0, 1, 2, 3)

    lab.run(scenario, config=QUICK)


def test_a_member_that_joins_a_generation_too_late_has_lost_its_partitions(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static member keeps its place in the group, but others may have its partitions."""
    ask = ClassicMembership._ask_to_join
    joins = 0

    async def join_late(member: ClassicMembership, *given: Any) -> Any:
        nonlocal joins
        if member._options.instance_id is not None:
            joins += 1
            if joins == 2:
                await asyncio.sleep(12)
        return await ask(member, *given)

    monkeypatch.setattr(ClassicMembership, "_ask_to_join", join_late)

    async def scenario() -> None:
        await fill(lab)
        options: dict[str, Any] = {
            "partition_assignment_strategy": "cooperative-sticky",
            "max_poll_interval_ms": 9000,
            "session_timeout_ms": 30_000,
        }
        lost: list[TopicPartition] = []
        async with (
            consumer(lab, "late", **options, group_instance_id="late") as late,
            consumer(lab, "quick", **options) as quick,
        ):
            late.subscribe(["t"], on_lost=lost.extend)
            assert len(await read(late, 40)) == 40
            quick.subscribe(["t"])
            async with asyncio.timeout(60):
                while (len(late.assignment()), len(quick.assignment())) != (2, 2):
                    await late.poll(100)
                    await quick.poll(100)
            assert set(lost) == partitions(0, 1, 2, 3)
            assert joins > 2

    lab.run(scenario, config=QUICK)
