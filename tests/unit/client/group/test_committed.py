"""Commits that are refused, or that nobody answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.group.test_group_consumer import QUICK, consumer, fill, read
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab.client.group.committed import CommittedOffsets
from trimtab.client.group.handover import Change, Kind
from trimtab.client.group.membership import NO_MEMBER
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable

__all__ = ["lab"]


def test_who_is_no_member_commits_only_while_the_group_has_none(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "stranger") as stranger:
            assert isinstance(stranger._group and stranger._group._offsets, CommittedOffsets)
            assert stranger.group_metadata()[1:3] == NO_MEMBER
            await stranger.commit({("t", 0): 3})
            async with consumer(lab, "member", enable_auto_commit=False) as member:
                member.subscribe(["t"])
                assert len(await read(member, 37)) == 37
                with pytest.raises(BrokerError) as raised:
                    await stranger.commit({("t", 0): 4})
                assert raised.value.code is ErrorCode.UNKNOWN_MEMBER_ID
                assert "removed this member" in str(raised.value)
            found = await stranger.committed([("t", 0)])
            assert [each and each.offset for each in found.values()] == [3]

    lab.run(scenario, config=QUICK)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_was_removed_commits_nothing_even_if_the_group_is_empty(
    lab: Lab, protocol: str
) -> None:
    async def scenario() -> None:
        await fill(lab)
        options: dict[str, Any] = {"group_protocol": protocol, "max_poll_interval_ms": 9000}
        async with consumer(lab, **options, enable_auto_commit=False) as slow:
            slow.subscribe(["t"])
            assert len(await read(slow, 40)) == 40
            await asyncio.sleep(30)
            with pytest.raises(BrokerError, match="not a member now; poll"):
                await slow.commit()
            async with consumer(lab, "other") as other:
                assert set((await other.committed([("t", 0)])).values()) == {None}

    lab.run(scenario, config=QUICK)


def test_a_commit_that_nobody_answers_ends_in_time_and_says_why(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, default_api_timeout_ms=3000) as one:
            one.subscribe(["t"])
            assert len(await read(one, 40)) == 40
            await lab.brokers[0].close(hand_over=False)
            with pytest.raises(Unavailable, match="group g: not committed within 3 s"):
                await one.commit()

    lab.run(scenario, config=QUICK)


def test_a_commit_is_not_repeated_after_its_partition_was_let_go(lab: Lab) -> None:
    """In the next generation it would be taken, and put back what another member has committed."""

    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, enable_auto_commit=False) as one:
            one.subscribe(["t"])
            assert len(await read(one, 40)) == 40
            group = one._group
            assert group is not None
            led = lab.brokers[0].groups.find("g")
            assert led is not None
            led._start_again(ErrorCode.NOT_COORDINATOR)  # it is loaded meanwhile
            committing = asyncio.ensure_future(one.commit({("t", 0): 7}))
            await asyncio.sleep(0.05)
            group.handover.carried_out(Change(Kind.LOST, group.handover.owned))
            with pytest.raises(BrokerError, match="rebalanced without this member") as raised:
                await committing
            assert raised.value.code is ErrorCode.ILLEGAL_GENERATION

    lab.run(scenario, config=QUICK)


def test_a_poll_goes_on_when_nobody_tells_the_committed_offsets_in_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = CommittedOffsets.fetch
    asked = 0

    async def answer_late(offsets: CommittedOffsets, *given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise Unavailable("no answer in time")
        return await fetch(offsets, *given)

    monkeypatch.setattr(CommittedOffsets, "fetch", answer_late)

    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab) as reader:
            reader.subscribe(["t"])
            assert len(await read(reader, 40)) == 40
            assert asked >= 4

    lab.run(scenario, config=QUICK)


def test_a_commit_behind_a_join_that_waits_is_repeated_in_the_next_generation(lab: Lab) -> None:
    """The coordinator reads it when that generation has begun, and so refuses it first."""

    async def scenario() -> None:
        await fill(lab, 2)
        options: dict[str, Any] = {
            "partition_assignment_strategy": "cooperative-sticky",
            "heartbeat_interval_ms": 300,
            "enable_auto_commit": False,
        }
        async with (
            consumer(lab, "one", **options) as one,
            consumer(lab, "two", **options) as two,
            consumer(lab, "three", **options) as three,
        ):
            one.subscribe(["t"])
            two.subscribe(["t"])
            while not (len(one.assignment()) == len(two.assignment()) == 1):
                await asyncio.gather(one.poll(100), two.poll(100))
            (kept,) = one.assignment()
            three.subscribe(["t"])
            await asyncio.gather(one.poll(2000), three.poll(2000))
            while await one.poll(1000):
                pass  # it has joined again, and waits for the second, which does not poll
            committing = asyncio.create_task(one.commit({kept: 7}))
            await asyncio.sleep(1)
            assert not committing.done()
            while not committing.done():
                await asyncio.gather(one.poll(100), two.poll(100), three.poll(100))
            await committing
            assert one.assignment() == {kept}
            assert [each and each.offset for each in (await one.committed([kept])).values()] == [7]

    lab.run(scenario, config=QUICK)


def test_a_commit_of_what_was_let_go_of_is_not_repeated_in_the_next_generation(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab, 2)
        options: dict[str, Any] = {
            "partition_assignment_strategy": "range",
            "heartbeat_interval_ms": 300,
            "enable_auto_commit": False,
        }
        async with (
            consumer(lab, "one", **options) as one,
            consumer(lab, "two", **options) as two,
        ):
            one.subscribe(["t"])
            assert len(await read(one, 20)) == 20
            two.subscribe(["t"])
            await two.poll(100)
            for _ in range(10_000):  # until it has let go of both partitions, and joins again
                await one.poll(1)
                if not one.assignment():
                    break
            assert not one.assignment()
            committing = asyncio.create_task(one.commit({("t", 0): 7, ("t", 1): 7}))
            while len(one.assignment()) + len(two.assignment()) < 2:
                await asyncio.gather(one.poll(100), two.poll(100))
            with pytest.raises(BrokerError) as raised:
                await committing
            assert raised.value.code in (
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.REBALANCE_IN_PROGRESS,
            )

    lab.run(scenario, config=QUICK)
