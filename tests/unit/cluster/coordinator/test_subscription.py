"""The topics in consumers' metadata, and what is no such metadata."""

from __future__ import annotations

import pytest

from tests.unit.cluster.coordinator.scene import DAY_MS, GROUP, Scene
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff", {"a", "bc"}),
        (b"\0\x09\0\0\0\1\0\1a" + b"\xff" * 4 + b"\0" * 8 + b"\xff\xff" + b"later", {"a"}),
        (b"\0\0\0\0\0\0\xff\xff\xff\xff", set()),
        (b"\0\3\0\0\0\1\0\1a" + b"\xff" * 4 + b"of another form", {"a"}),
        (b"\0\0\xff\xff\xff\xff", None),
        (b"\xff\xff\0\0\0\0\xff\xff\xff\xff", None),
        (b"\0\0\x7f\xff\xff\xff\0\1a", None),
        (b"\0\0\0\0\0\1\0\5ab", None),
        (b"", None),
    ],
)
def test_topics_are_read_if_they_can_be(metadata: bytes, topics: set[str] | None) -> None:
    scene = Scene()
    scene.stable_group(size=1, protocols=[("range", metadata)])
    assert scene.shard._groups[GROUP].subscribed_topics() == topics


def test_topics_are_those_of_the_chosen_protocol() -> None:
    scene = Scene()
    protocols = [("mine", b"?"), ("range", b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff")]
    scene.stable_group(size=1, protocols=protocols)
    group = scene.shard._groups[GROUP]
    assert (group.protocol, group.subscribed_topics()) == ("mine", None)
    group.protocol = "range"
    assert group.subscribed_topics() == {"a"}


def test_offsets_stay_while_nobody_knows_what_the_members_read() -> None:
    scene = Scene()
    (member,) = scene.stable_group(size=1, protocols=[("range", b"?")])
    scene.commit(1, member, 1)
    for _ in range(8):
        scene.now_s += DAY_MS / 1000
        scene.expire_offsets()
    assert scene.committed() == 1
    partition = TopicPartition("t", 0)
    code, codes = scene.shard.delete_offsets(GROUP, [partition])
    assert (code, codes) == (0, {partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
