"""Consumer groups (KIP-848) on brokers: over the wire, with options of their own, moved."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from tests.steps import count_steps
from tests.unit.cluster.broker.test_groups import QUICK, commit, find
from trimtab.cluster.broker.authorized_operations import ON_GROUP
from trimtab.cluster.broker.handlers.groups import consumer_group_heartbeat
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

pytestmark = pytest.mark.kip(848)

CONFIG_GROUP = 32


async def beat(
    client: Any,
    epoch: int = 0,
    member: str = "m",
    owned: list[int] | None = None,
    topic_id: bytes = b"",
    **more: Any,
) -> Any:
    """The response to a heartbeat, sent again while the groups are loaded."""
    if epoch == 0:
        more = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 30_000, **more}
        owned = []
    while True:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            topic_partitions=None
            if owned is None
            else [TopicPartitions(topic_id=topic_id, partitions=owned)] * bool(owned),
            **more,
        )
        response = await client.ask(request, 1)
        if response.error_code not in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        ):
            return response
        await asyncio.sleep(0.01)


def test_members_offsets_and_groups_over_the_wire(lab: Any) -> None:
    async def scenario() -> None:
        topic_id = await lab.create_topic("t", partitions=3)
        await find(lab)
        client = lab.connect()
        first = await beat(client)
        assert (first.member_epoch, first.heartbeat_interval_ms) == (2, 5000)
        (assigned,) = first.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic_id, [0, 1, 2])
        assert (await beat(client, member="n", rack_id="r")).member_epoch == 3
        assert (await beat(client, 2)).assignment is not None
        assert (await beat(client, 2, owned=[0, 1], topic_id=topic_id)).member_epoch == 3

        stored = await client.ask(commit(5, "m", 3), 9)
        assert stored.topics[0].partitions[0].error_code == 0
        stale = await client.ask(commit(6, "m", 1, topic_id=topic_id), 10)
        assert stale.topics[0].partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
        wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        groups = [
            OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=epoch, topics=wanted)
            for epoch in (3, 2)
        ]
        fetched = await client.ask(OffsetFetchRequest(groups=groups), 9)
        assert [each.error_code for each in fetched.groups] == [0, ErrorCode.STALE_MEMBER_EPOCH]
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 5

        described = await client.ask(
            ConsumerGroupDescribeRequest(
                group_ids=["g", "other"], include_authorized_operations=True
            ),
            1,
        )
        group, missing = described.groups
        assert (group.authorized_operations, missing.authorized_operations) == (
            ON_GROUP,
            -(2**31),
        )
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == (
            "Reconciling",
            3,
            3,
        )
        assert group.assignor_name == "uniform"
        m, n = group.members
        assert (m.member_id, m.client_host, n.rack_id) == ("m", "/192.0.2.1", "r")
        assert m.assignment.topic_partitions[0].topic_name == "t"
        assert n.target_assignment.topic_partitions[0].partitions == [2]
        listed = await client.ask(ListGroupsRequest(types_filter=["CONSUMER"]), 5)
        assert [(each.group_id, each.group_type) for each in listed.groups] == [("g", "Consumer")]

        again = asyncio.ensure_future(beat(client, -1, "n"))
        assert (await again).error_code == 0
        refused = await beat(client, 3, "n")
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    lab.run(scenario, config=QUICK)


def test_topics_that_come_and_grow_are_assigned(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        first = await beat(client, subscribed_topic_regex="t.*", subscribed_topic_names=None)
        assert first.assignment.topic_partitions == []
        for epoch, topic in ((3, "t1"), (4, "t2")):
            await lab.create_topic(topic, partitions=2)
            grown = await beat(client, epoch - 1)
            assert grown.member_epoch == epoch
        assert [each.partitions for each in grown.assignment.topic_partitions] == [[0, 1]] * 2

    lab.run(scenario, config=QUICK)


def test_a_group_has_options_of_its_own(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        altered = await client.ask(
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=CONFIG_GROUP,
                        resource_name="g",
                        configs=[
                            AlterableConfig(
                                name="consumer.heartbeat.interval.ms",
                                config_operation=0,
                                value="7000",
                            ),
                            AlterableConfig(
                                name="consumer.session.timeout.ms",
                                config_operation=0,
                                value="50000",
                            ),
                        ],
                    )
                ],
                validate_only=False,
            ),
            1,
        )
        assert altered.responses[0].error_code == 0
        response = await beat(client)
        while response.heartbeat_interval_ms != 7000:
            assert response.heartbeat_interval_ms == 5000
            await asyncio.sleep(0.05)
            response = await beat(client)
        await asyncio.sleep(49)
        assert (await beat(client, 2)).error_code == 0
        await asyncio.sleep(51)
        assert (await beat(client, 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    lab.run(scenario, config=QUICK)


@pytest.mark.kip(1263)
def test_an_assignment_waits_for_the_interval_of_the_brokers(lab: Any) -> None:
    async def scenario() -> None:
        await find(lab)
        client = lab.connect()
        assert (await beat(client)).member_epoch == 2
        assert (await beat(client, member="n")).member_epoch == 2
        await asyncio.sleep(1)
        assert (await beat(client, 2, "n")).member_epoch == 3

    lab.run(scenario, config={"offsets.topic.num.partitions": 1})


def test_the_next_coordinator_knows_the_members(lab: Any) -> None:
    async def scenario() -> None:
        topic_id = await lab.create_topic("t", partitions=4, replicas=3)
        first = (await find(lab)).node_id
        client = lab.connect(first)
        await beat(client)
        await beat(client, member="n")
        await beat(client, 2)
        await lab.brokers[first].close()
        second = first
        while second == first:
            second = (await find(lab, broker=(first + 1) % 3)).node_id
            await asyncio.sleep(0.05)
        client = lab.connect(second)
        assert (await beat(client, 3, "n")).assignment is None, "m has not let go"
        assert (await beat(client, 2, owned=[0, 1], topic_id=topic_id)).member_epoch == 3
        told = await beat(client, 3, "n")
        assert told.assignment.topic_partitions[0].partitions == [2, 3]

    lab.run(scenario, brokers=3, config=QUICK)


def test_partitions_that_do_not_exist_are_nobodys(lab: Any) -> None:
    async def scenario() -> None:
        topic_id = await lab.create_topic("t", partitions=2)
        await find(lab)
        client = lab.connect()
        joined = await beat(client)
        for owned in ([0, 1, 2, -1, 70_000], [0] * 1000):
            again = await beat(client, joined.member_epoch, owned=owned, topic_id=topic_id)
            assert (again.error_code, again.member_epoch) == (0, joined.member_epoch)
        seen: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:

            def see(*args: Any) -> Any:
                seen.append(args[-1])
                return Mock()

            patch.setattr(GroupShard, "consumer_heartbeat", see)
            request = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=list(range(20_000))),
                    TopicPartitions(topic_id=bytes(16), partitions=list(range(20_000))),
                ],
            )
            header = RequestHeader(68, 1, 1, "c", 0, "host")
            steps, _ = count_steps(consumer_group_heartbeat(lab.brokers[0].groups, header, request))
        assert steps >= 40_000 // 1000
        assert seen == [{(topic_id, 0), (topic_id, 1)}]

    lab.run(scenario, config=QUICK)


def test_a_heartbeat_has_regular_expressions_matched_in_steps(lab: Any) -> None:
    async def scenario() -> None:
        for number in range(20):
            await lab.create_topic(f"t{number:0100}")
        await find(lab)
        client = lab.connect()
        slow = "t.*|" + "x" * 9000
        joined = await beat(client, subscribed_topic_names=[], subscribed_topic_regex=slow)
        assert joined.error_code == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=joined.member_epoch
        )
        header = RequestHeader(68, 1, 1, "c", 0, "host")
        groups = lab.brokers[0].groups
        assert count_steps(consumer_group_heartbeat(groups, header, request))[0] == 0
        await lab.create_topic("t" + "x" * 100)
        assert count_steps(consumer_group_heartbeat(groups, header, request))[0] > 10
        shard = groups.find("g").shard
        assert "t" + "x" * 100 in shard._consumer_groups["g"].subscribed_topics()

    lab.run(scenario, config=QUICK)
