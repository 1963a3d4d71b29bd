"""Members of classic groups that are static, or fenced, against trimtab's brokers."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.conftest import Lab, lab
from tests.unit.client.group.test_group_consumer import QUICK, consumer, fill, partitions, read
from trimtab.client.group.classic import ClassicMember
from trimtab.errors import BrokerError, ErrorCode

__all__ = ["lab"]


def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(lab: Lab) -> None:
    async def scenario() -> None:
        await fill(lab)
        async with consumer(lab, "one", group_instance_id="one") as one:
            one.subscribe(["t"])
            assert await read(one, 40) == list(range(40))
            assert isinstance(one._group and one._group._member, ClassicMember)
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
