"""Members of KIP-848's groups that are static, or refused, against trimtab's brokers."""

from __future__ import annotations

import pytest

from tests.unit.broker.conftest import Lab, lab
from tests.unit.client.group.test_group_consumer import QUICK, consumer, fill, partitions, read
from trimtab.client.group.consumer_protocol import ConsumerMember
from trimtab.errors import BrokerError
from trimtab.records import TopicPartition

__all__ = ["lab"]

OPTIONS = {"group_protocol": "consumer"}


def test_a_static_member_that_restarts_keeps_its_partitions(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", **OPTIONS, group_instance_id="one") as one:
            one.subscribe(["t"])
            assert await read(one, 40) == list(range(40))
            assert isinstance(one._group and one._group._member, ConsumerMember)
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
