"""Members of a group in a virtual cluster without faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn, cast

import pytest

from lab.reliability.checkers import Violation
from lab.reliability.group_checker import GroupChecker
from lab.reliability.members import GROUP_OPTIONS, GroupPlan, Member
from trimtab.client.admin import AsyncAdmin
from trimtab.client.producer import AsyncProducer
from trimtab.kafka.records import TopicPartition
from trimtab.sim.virtual_cluster import VirtualCluster
from trimtab.sim.world import World

PARTITIONS = [TopicPartition("t", index) for index in range(2)]
RECORDS = 20


class _Checkers:
    def fail(self, what: str) -> NoReturn:
        raise Violation(what)


class Scene:
    """A cluster, and two members that only do what the test has them do."""

    def __init__(self, world: World, protocol: str) -> None:
        self.world = world
        options = GROUP_OPTIONS | {"offsets.topic.replication.factor": 1}
        self.cluster = VirtualCluster(world, 1, options)
        self.checker = GroupChecker("group", PARTITIONS, cast(Any, _Checkers()), True)
        plan = GroupPlan((protocol,), "range", None)
        self.members = [
            Member(world, number, self.cluster.bootstrap_servers, ["t"], plan, self.checker)
            for number in range(2)
        ]

    def run(self, scenario: Callable[[AsyncAdmin], Awaitable[None]]) -> None:
        async def run() -> None:
            self.cluster.start()
            bootstrap, random = self.cluster.bootstrap_servers, self.world.random("test")
            async with AsyncAdmin(bootstrap, random=random) as admin:
                await admin.create_topic("t", len(PARTITIONS), 1)
                clock = self.world.wall_clock
                async with AsyncProducer(bootstrap, wall_clock=clock, random=random) as producer:
                    for number in range(RECORDS):
                        await producer.send("t", b"0 %d " % number, partition=number % 2)
                for member in self.members:
                    member.stay()
                tasks = [asyncio.create_task(member.run()) for member in self.members]
                await self.until(lambda: sum(self.checker.processed.values()) == RECORDS)
                await scenario(admin)
                for member in self.members:
                    member.stop()
                await asyncio.gather(*tasks)
                found = await admin.list_group_offsets("group")
                assert {each: at.offset for each, at in found.items()} == self.checker.processed
            await self.cluster.close()

        self.world.run(run())

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(600):
            if condition():
                return
            await asyncio.sleep(0.1)
        raise TimeoutError

    def owned(self) -> list[int]:
        """How many partitions each member owns and has read."""
        return [len(each.finished(self.checker.processed)) for each in self.members]


@pytest.fixture(params=["classic", "consumer"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with World(seed=3, keep_trace=True) as world:
        yield Scene(world, request.param)


def test_the_members_share_the_partitions_and_commit_what_they_have_read(scene: Scene) -> None:
    async def scenario(admin: AsyncAdmin) -> None:
        await scene.until(lambda: scene.owned() == [1, 1])

    scene.run(scenario)


def test_a_killed_member_says_nothing_and_comes_back(scene: Scene) -> None:
    async def scenario(admin: AsyncAdmin) -> None:
        await scene.until(lambda: scene.owned() == [1, 1])
        dead = scene.members[0]
        lines = scene.world.trace.lines
        killed = len(lines)
        dead._kill()
        await scene.until(lambda: dead.membership.life == 2)
        between = [line.split(" ", 1)[1] for line in list(lines)[killed:]]
        end = next(at for at, line in enumerate(between) if line.startswith("member-0/2 joins"))
        said = [line for line in between[:end] if line.startswith("c") and "member-0" in line]
        assert said == []
        await scene.until(lambda: sum(scene.owned()) == len(PARTITIONS))

    scene.run(scenario)
