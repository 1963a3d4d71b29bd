"""Members of KIP-848's groups that are static, that subscribe to an expression of the coordinator,
or that are refused, against trimtab's brokers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.client.group.test_group_consumer import QUICK, consumer, fill, partitions, read
from tests.unit.cluster.broker.conftest import Lab, lab
from trimtab import SubscriptionPattern
from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.group import consumer_protocol
from trimtab.client.group.consumer_protocol import ConsumerMembership
from trimtab.client.group.handover import Handover, Kind
from trimtab.client.group.membership import MemberOptions
from trimtab.client.network.connection import Connection
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from trimtab.sim.world import World

__all__ = ["lab"]

OPTIONS = {"group_protocol": "consumer"}


def test_a_static_member_that_restarts_keeps_its_partitions(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", **OPTIONS, group_instance_id="one") as one:
            one.subscribe(["t"])
            assert await read(one, 40) == list(range(40))
            assert isinstance(one._group and one._group._member, ConsumerMembership)
        async with consumer(lab, "other", **OPTIONS) as other:
            other.subscribe(["t"])
            await other.poll(5000)
            async with consumer(lab, "again", **OPTIONS, group_instance_id="one") as again:
                again.subscribe(["t"])
                await again.poll(2000)
                assert again.assignment(), "while its session lasts, its partitions are its own"
                assert not again.assignment() & other.assignment()

    lab.run(scenario, config=QUICK)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_is_closed_leaves_at_once(lab: Lab, protocol: str) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "other", group_protocol=protocol) as other:
            async with consumer(lab, "one", group_protocol=protocol) as one:
                for each in (one, other, one, other, one, other):
                    each.subscribe(["t"])
                    await each.poll(4000)
                assert other.assignment() != partitions(0, 1, 2, 3)
            now = lab.world.loop.time
            begin = now()
            while other.assignment() != partitions(0, 1, 2, 3):
                await other.poll(100)
            assert now() - begin < 10, "not only when its session of 45 s ends"

    lab.run(scenario, config=QUICK)


def test_a_second_member_with_an_instance_id_in_use_is_refused_for_good(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", **OPTIONS, group_instance_id="i") as one:
            one.subscribe(["t"])
            assert len(await read(one, 40)) == 40
            async with consumer(lab, "two", **OPTIONS, group_instance_id="i") as two:
                two.subscribe(["t"])
                for _ in range(2):
                    with pytest.raises(BrokerError, match="UNRELEASED_INSTANCE_ID"):
                        await two.poll(5000)
            assert one.assignment() == partitions(0, 1, 2, 3)

    lab.run(scenario, config=QUICK)


def test_an_assignor_that_the_coordinator_does_not_have_is_refused(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, **OPTIONS, group_remote_assignor="fair") as one:
            one.subscribe(["t"])
            with pytest.raises(BrokerError, match=r"UNSUPPORTED_ASSIGNOR.*fair"):
                await one.poll(5000)

    lab.run(scenario, config=QUICK)


def test_a_member_whose_coordinator_does_not_know_the_group_joins_again(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        lost: list[TopicPartition] = []
        async with consumer(lab, **OPTIONS) as one:
            one.subscribe(["t"], on_lost=lost.extend)
            assert len(await read(one, 40)) == 40
            for led in lab.brokers[0].groups:
                assert led.shard is not None
                led.shard._consumer_groups.clear()
            await one.poll(4000)
            assert set(lost) == one.assignment() == partitions(0, 1, 2, 3)

    lab.run(scenario, config=QUICK)


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[ConsumerGroupHeartbeatRequest]:
    """The heartbeats of all members."""
    sent: list[ConsumerGroupHeartbeatRequest] = []
    ask = ConsumerMembership._ask

    async def note(
        member: ConsumerMembership, heartbeat: Callable[[], ConsumerGroupHeartbeatRequest]
    ) -> Any:
        def make() -> ConsumerGroupHeartbeatRequest:
            sent.append(heartbeat())
            return sent[-1]

        return await ask(member, make)

    monkeypatch.setattr(ConsumerMembership, "_ask", note)
    return sent


def test_the_coordinator_evaluates_an_expression(
    lab: Lab, beats: list[ConsumerGroupHeartbeatRequest]
) -> None:
    async def scenario() -> None:
        for topic in ("orders-a", "orders-b", "payments"):
            await fill(lab, 1, topic)
        async with consumer(lab, **OPTIONS) as reader:
            pattern = SubscriptionPattern("orders-.*")
            reader.subscribe(pattern)
            assert reader.subscription() == pattern
            assert len(await read(reader, 20)) == 20
            assert {each.topic for each in reader.assignment()} == {"orders-a", "orders-b"}
            await fill(lab, 1, "orders-c")
            assert len(await read(reader, 10)) == 10

            told = len(beats)
            reader.subscribe(SubscriptionPattern("payments"))
            assert len(await read(reader, 10)) == 10
            assert {each.topic for each in reader.assignment()} == {"payments"}
            reader.subscribe(["orders-a"])
            async with asyncio.timeout(60):
                while reader.assignment() != partitions(0, topic="orders-a"):
                    await reader.poll(100)
        subscriptions = [
            (each.subscribed_topic_names, each.subscribed_topic_regex)
            for each in beats
            if (each.subscribed_topic_names, each.subscribed_topic_regex) != (None, None)
        ]
        assert subscriptions == [([], "orders-.*"), ([], "payments"), (["orders-a"], "")]
        assert 3 < told < len(beats), "most heartbeats have no subscription"

    lab.run(scenario, config=QUICK)


def test_an_expression_may_match_nothing_yet(lab: Lab) -> None:
    async def scenario() -> None:
        async with consumer(lab, **OPTIONS) as reader:
            reader.subscribe(SubscriptionPattern("t"))
            assert await reader.poll(3000) == []
            await fill(lab)
            assert await read(reader, 40) == list(range(40))

    lab.run(scenario, config=QUICK)


def test_who_is_removed_subscribes_to_the_expression_again(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, **OPTIONS, max_poll_interval_ms=9000) as reader:
            reader.subscribe(SubscriptionPattern("t"))
            assert len(await read(reader, 40)) == 40
            await asyncio.sleep(30)
            async with asyncio.timeout(60):
                await reader.poll(100)
                while reader.assignment() != partitions(0, 1, 2, 3):
                    await reader.poll(100)

    lab.run(scenario, config=QUICK)


def test_an_invalid_expression_ends_the_membership(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, **OPTIONS) as reader:
            reader.subscribe(SubscriptionPattern("orders-("))
            for _ in range(2):
                with pytest.raises(BrokerError, match=r"'orders-\('") as raised:
                    await reader.poll(5000)
                assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
            await reader.unsubscribe()
            reader.subscribe(SubscriptionPattern("t"))
            assert len(await read(reader, 40)) == 40

    lab.run(scenario, config=QUICK)


def test_an_older_coordinator_evaluates_no_expressions(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_protocol, "_PATTERNS_SINCE", 2)

    async def scenario() -> None:
        async with consumer(lab, **OPTIONS) as reader:
            reader.subscribe(SubscriptionPattern("t"))
            with pytest.raises(UsageError, match=r"pattern='t'.*since 4\.0; subscribe to a comp"):
                await reader.poll(5000)

    lab.run(scenario, config=QUICK)


def test_an_expression_of_the_coordinator_needs_its_protocol(lab: Lab) -> None:
    async def scenario() -> None:
        pattern = SubscriptionPattern("t")
        async with consumer(lab) as reader:
            with pytest.raises(UsageError, match=r"group\.protocol=consumer.* re\.compile\('t'\)"):
                reader.subscribe(pattern)
            assert reader.subscription() == frozenset()
        async with consumer(lab, **OPTIONS, group_id=None) as reader:
            with pytest.raises(UsageError, match="group_id"):
                reader.subscribe(pattern)

    lab.run(scenario)


@pytest.mark.parametrize("pattern", ["", b"t", re.compile("t"), None])
def test_an_expression_of_the_coordinator_is_text(pattern: Any) -> None:
    with pytest.raises(UsageError, match="SubscriptionPattern"):
        SubscriptionPattern(pattern)


async def run_member(
    world: World,
    handover: Handover,
    names: dict[bytes, str],
    answer: Callable[..., Any],
    over: asyncio.Future[None],
) -> None:
    """Run a member whose coordinator answers so, until `over`; `names` are the topics' by id."""
    metadata = SimpleNamespace(
        on_update=lambda _: None,
        watch=lambda _: None,
        views=lambda: [SimpleNamespace(topic_id=id, name=name) for id, name in names.items()],
    )
    member = ConsumerMembership(
        cast(Any, SimpleNamespace(ask=answer)),
        cast(Any, metadata),
        handover,
        MemberOptions("g", None, 45, 3, 300, None, None),
        ConsumerMetrics(lambda: 0.0, 30, 2),
        world.random("member"),
    )
    member.subscribe(frozenset(["t"]))
    running = asyncio.ensure_future(member.run())
    async with asyncio.timeout(60):
        await over
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def assign(topic_id: bytes, *partitions: int) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=0,
        throttle_time_ms=0,
        member_epoch=1,
        heartbeat_interval_ms=5000,
        assignment=Assignment(
            topic_partitions=[TopicPartitions(topic_id=topic_id, partitions=list(partitions))]
        ),
    )


@pytest.mark.kip(848)
async def test_a_partition_that_the_next_poll_begins_to_read_is_told_as_owned(world: World) -> None:
    """Otherwise the coordinator gives it to another member, when a heartbeat has to be repeated."""
    handover = Handover()
    over = asyncio.get_running_loop().create_future()
    told: list[list[int]] = []

    def begin() -> None:  # and then the application polls no more
        if handover.change is not None and handover.change.kind is Kind.LOST:
            asyncio.get_running_loop().call_soon(handover.carried_out, handover.change)

    handover.on_due = begin

    async def answer(_: Any, make: Any, judge: Any) -> ConsumerGroupHeartbeatResponse:
        make(1)
        if not told:
            told.append([])
            return assign(b"t" * 16, 0, 2)
        repeated = make(1)
        told.append([each for of in repeated.topic_partitions for each in of.partitions])
        over.set_result(None)
        return assign(b"t" * 16, 0)

    await run_member(world, handover, {b"t" * 16: "t"}, answer, over)
    assert told == [[], [0, 2]]
    assert handover.owned == frozenset()


@pytest.mark.kip(516)
async def test_partitions_of_a_topic_with_another_id_are_other_ones(world: World) -> None:
    """Also if the coordinator replaces them in one step, and the client knows both ids."""
    old, new = b"o" * 16, b"n" * 16
    names = {old: "t", new: "t"}
    changes: list[tuple[str, int]] = []
    handover = Handover()

    def carry_out() -> None:
        assert handover.change is not None
        changes.append((handover.change.kind.value, len(handover.change.partitions)))
        asyncio.get_running_loop().call_soon(handover.carried_out, handover.change)

    handover.on_due = carry_out
    owned: list[Any] = []
    over = asyncio.get_running_loop().create_future()

    async def answer(_: Any, make: Any, judge: Any) -> ConsumerGroupHeartbeatResponse:
        request = make(1)
        if request.topic_partitions is not None:
            owned.append([each.topic_id for each in request.topic_partitions])
        if len(owned) == 4:
            over.set_result(None)
        return assign(new if len(owned) > 1 else old, 0)

    await run_member(world, handover, names, answer, over)
    assert changes == [("lost", 0), ("assigned", 1), ("revoked", 1), ("assigned", 1)]
    assert owned == [[], [old], [new], [new]]


def test_assignments_whose_responses_are_lost_are_told_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Connection.request
    lost: list[str] = []

    async def lose_some(connection: Connection, request: Any, *given: Any) -> Any:
        response: Any = await ask(connection, request, *given)
        is_later = isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch > 0
        if is_later and response.assignment is not None and len(lost) < 3:
            lost.append(request.member_id)
            raise Unavailable("the connection was lost")
        return response

    monkeypatch.setattr(Connection, "request", lose_some)

    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", **OPTIONS) as one, consumer(lab, "two", **OPTIONS) as two:
            one.subscribe(["t"])
            assert len(await read(one, 40)) == 40
            two.subscribe(["t"])
            async with asyncio.timeout(60):
                while (len(one.assignment()), len(two.assignment())) != (2, 2):
                    await one.poll(100)
                    await two.poll(100)
            assert len(lost) == 3

    lab.run(scenario, config=QUICK)
