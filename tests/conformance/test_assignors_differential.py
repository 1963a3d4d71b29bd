"""The assignors of classic groups beside Apache Kafka's own, which get the same groups.

`range` and `roundrobin` must give each member exactly the same partitions. The sticky assignors
must be at least as balanced, and must not move more; user data must be the same bytes.

`java/AssignorsTwin.java` runs Kafka's classes, all groups in one process. SCENES is the number of
groups for each assignor and kind. Skipped without javac or Apache Kafka's jars
(`python -m lab.benchmarks.jars`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from lab.benchmarks.jars import find_kafka_jars, java_command
from trimtab.client.group.assignors.factory import ASSIGNORS
from trimtab.client.group.assignors.protocol import Assignment, Assignor, Subscriber, Topic
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from trimtab.kafka.wire.messages.consumer_protocol import TopicPartition as Owned

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None or find_kafka_jars() is None,
    reason="needs javac and Apache Kafka's jars: python -m lab.benchmarks.jars",
)

SCENES = int(os.environ.get("SCENES", "300"))
SOURCE = Path(__file__).parent / "java" / "AssignorsTwin.java"
RACKS = ("x", "y", "z")


class Scene(NamedTuple):
    """A group that joins: members as they are now, and the generation before."""

    topics: dict[str, Topic]
    members: list[Subscriber]

    def sizes(self, assigned: Assignment) -> int:
        return sum(len(each) ** 2 for each in assigned.values())

    def moves(self, assigned: Assignment) -> int:
        """Partitions that their owner does not keep."""
        return sum(len(each.owned.difference(assigned[each.member_id])) for each in self.members)

    def far(self, assigned: Assignment) -> int:
        """Partitions that a member reads from another rack."""
        return sum(
            each.rack is not None
            and each.rack not in self.topics[partition.topic].racks_of(partition.partition)
            for each in self.members
            for partition in assigned[each.member_id]
        )


def make_scene(random: Random, alike: bool, has_racks: bool, static: bool) -> Scene:
    """Each partition is owned by at most one member, as after a rebalance with more members, fewer,
    or with other subscriptions."""
    names = [f"t{number}" for number in range(random.randint(1, 5))]
    topics = {
        name: Topic(
            count := random.randint(1, 12),
            tuple(frozenset(random.sample(RACKS, random.randint(1, 2))) for _ in range(count))
            if has_racks
            else (),
        )
        for name in names
    }
    count = random.randint(1, 8)
    everything = [
        TopicPartition(name, index) for name in names for index in range(topics[name].partitions)
    ]
    random.shuffle(everything)
    owned: list[set[TopicPartition]] = [set() for _ in range(count)]
    turn = random.choice((0, 1, 2))
    for number, partition in enumerate(everything):
        if turn == 1 and random.random() < 0.8:  # uneven
            owned[min(random.randrange(count), random.randrange(count))].add(partition)
        elif turn == 2 and number % (count + 1) < count:  # a member left
            owned[number % (count + 1)].add(partition)
    members = [
        Subscriber(
            f"m{random.randrange(10**6):06}-{number}",
            f"i{random.randrange(10**6)}-{number}" if static and random.random() < 0.5 else None,
            frozenset(names if alike else random.sample(names, random.randint(1, len(names)))),
            frozenset(owned[number]),
            4 if owned[number] else -1,
            random.choice((None, *RACKS, *RACKS)) if has_racks else None,
        )
        for number in range(count)
    ]
    return Scene(topics, members)


def metadata_of(assignor: Assignor, each: Subscriber) -> ConsumerProtocolSubscription:
    is_eager = not assignor.is_cooperative
    return ConsumerProtocolSubscription(
        topics=sorted(each.topics),
        user_data=assignor.user_data(each.owned, each.generation, {}),
        owned_partitions=[]
        if is_eager
        else [Owned(topic=topic, partitions=[index]) for topic, index in sorted(each.owned)],
        generation_id=each.generation,
        rack_id=each.rack,
    )


def assign(assignor: Assignor, scene: Scene) -> Assignment:
    """With the members as the leader reads them from their metadata."""
    return assignor.assign(
        [
            assignor.subscriber(each.member_id, each.instance_id, metadata_of(assignor, each))
            for each in scene.members
        ],
        scene.topics,
    )


def write_scene(assignor: Assignor, scene: Scene) -> str:
    topics = ";".join(
        f"{name}^"
        + "|".join(
            ",".join(sorted(topic.racks_of(index))) or "-" for index in range(topic.partitions)
        )
        for name, topic in scene.topics.items()
    )
    members = []
    for each in scene.members:
        metadata = metadata_of(assignor, each)
        data = metadata.user_data
        owned = [
            TopicPartition(part.topic, index)
            for part in metadata.owned_partitions
            for index in part.partitions
        ]
        fields = (
            each.member_id,
            each.instance_id or "-",
            each.rack or "-",
            ",".join(metadata.topics),
            "-" if data is None else bytes(data).hex(),
            ",".join(map(str, owned)) or "-",
            str(each.generation),
        )
        members.append("^".join(fields))
    return f"assign\t{assignor.name}\t{topics}\t{';'.join(members)}"


def ask_java(lines: Sequence[str]) -> list[str]:
    done = subprocess.run(
        [*java_command("256m", "off"), "-cp", f"{find_kafka_jars()}/*", str(SOURCE)],
        input="".join(f"{line}\n" for line in lines),
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=500,
    )
    return done.stdout.splitlines()


def read_assignment(line: str) -> Assignment | None:
    """None where Java's assignor failed."""
    if line == "-":
        return None
    assigned: Assignment = {}
    for member in line.split(";"):
        name, _, given = member.partition("^")
        assigned[name] = sorted(
            TopicPartition(topic, int(index))
            for topic, _, index in (word.rpartition("-") for word in given.split(",") if word)
        )
    return assigned


KINDS = [(alike, has_racks) for alike in (True, False) for has_racks in (False, True)]
COMPARED = ("range", "roundrobin", "sticky", "cooperative-sticky")
OWNED = [[], [("a", 1)], [("b", 2), ("a", 1), ("a", 0)], [("topic", index) for index in range(300)]]


class Answers(NamedTuple):
    scenes: dict[tuple[str, bool, bool], list[tuple[Scene, Assignment]]]
    failed: int
    data: list[str]


@pytest.fixture(scope="module")
def java() -> Answers:
    """The assignments of all scenes, and the user data of all in `OWNED`, from one process."""
    random = Random(17)
    scenes = {
        (name, alike, has_racks): [
            make_scene(random, alike, has_racks, "sticky" not in name) for _ in range(SCENES)
        ]
        for name in COMPARED
        for alike, has_racks in KINDS
    }
    lines = [
        write_scene(ASSIGNORS[name](), scene)
        for (name, _, _), group in scenes.items()
        for scene in group
    ]
    lines += [
        f"data\t{name}\t{','.join(f'{topic}-{index}' for topic, index in owned) or '-'}\t7"
        for name in ("sticky", "cooperative-sticky")
        for owned in OWNED
    ]
    said = iter(ask_java(lines))
    read = {
        key: [(scene, read_assignment(next(said))) for scene in group]
        for key, group in scenes.items()
    }
    return Answers(
        {
            key: [(scene, theirs) for scene, theirs in group if theirs is not None]
            for key, group in read.items()
        },
        sum(theirs is None for group in read.values() for _, theirs in group),
        list(said),
    )


def test_java_rarely_fails(java: Answers) -> None:
    """Its sticky assignors do with some racks; these groups are not compared."""
    assert java.failed <= SCENES // 10


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.parametrize(("alike", "has_racks"), KINDS)
def test_each_member_gets_what_java_gives_it(
    java: Answers, name: str, alike: bool, has_racks: bool
) -> None:
    for scene, theirs in java.scenes[name, alike, has_racks]:
        assert assign(ASSIGNORS[name](), scene) == theirs


@pytest.mark.parametrize(("alike", "has_racks"), KINDS)
def test_sticky_is_as_balanced_and_moves_no_more(
    java: Answers, alike: bool, has_racks: bool
) -> None:
    """Each group is at least as balanced. (Java stops at an assignment that no single move
    improves; chains of moves may.) Where it is equally balanced, no more partitions are moved;
    with racks, each further move brings a partition into its member's rack. If all subscribe alike
    and have no racks, that holds for each group, else for their sum."""
    moves = their_moves = far = their_far = 0
    for scene, theirs in java.scenes["sticky", alike, has_racks]:
        ours = assign(ASSIGNORS["sticky"](), scene)
        assert scene.sizes(ours) <= scene.sizes(theirs)
        if alike:
            assert scene.sizes(ours) == scene.sizes(theirs)
            assert has_racks or scene.moves(ours) <= scene.moves(theirs)
        if scene.sizes(ours) == scene.sizes(theirs):
            far += scene.far(ours)
            their_far += scene.far(theirs)
            moves += scene.moves(ours)
            their_moves += scene.moves(theirs)
    print(f"{alike=} {has_racks=}: moves {moves} : {their_moves}, far {far} : {their_far}")
    assert far <= their_far
    assert moves - their_moves <= their_far - far


@pytest.mark.parametrize(("alike", "has_racks"), KINDS)
def test_cooperative_sticky_withholds_only_what_changes_hands(
    java: Answers, alike: bool, has_racks: bool
) -> None:
    """So all that Java gives away is free, and we give as much where we move as little."""
    for scene, theirs in java.scenes["cooperative-sticky", alike, has_racks]:
        ours = assign(ASSIGNORS["cooperative-sticky"](), scene)
        owner = {each: member.member_id for member in scene.members for each in member.owned}
        for given in (ours, theirs):
            for member, partitions in given.items():
                assert all(owner.get(each, member) == member for each in partitions)
        if alike and not has_racks:
            assert scene.moves(ours) <= scene.moves(theirs)
            assert sum(map(len, ours.values())) >= sum(map(len, theirs.values()))


def test_user_data_are_javas(java: Answers) -> None:
    ours = [
        ASSIGNORS[name]().user_data([TopicPartition(*each) for each in owned], 7, {})
        for name in ("sticky", "cooperative-sticky")
        for owned in OWNED
    ]
    # Java writes topics in the order of a hash table, so only the lengths are compared of two.
    for mine, theirs, owned in zip(ours, map(bytes.fromhex, java.data), OWNED * 2, strict=True):
        assert mine is not None
        if len({topic for topic, _ in owned}) < 2:
            assert mine == theirs
        else:
            assert len(mine) == len(theirs)
