"""The topics in consumers' metadata, and what is no such metadata."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.scene import GROUP, Scene
from trimtab.coordinator.subscription import subscribed_topics


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff", {"a", "bc"}),
        (b"\0\x09\0\0\0\1\0\1a" + b"\xff" * 4 + b"\0" * 8 + b"\xff\xff" + b"later", {"a"}),
        (b"\0\0\0\0\0\0\xff\xff\xff\xff", set()),
        (b"\0\0\xff\xff\xff\xff", set()),
        (b"\xff\xff\0\0\0\0\xff\xff\xff\xff", set()),
        (b"\0\0\x7f\xff\xff\xff\0\1a", set()),
        (b"\0\0\0\0\0\1\0\5ab", set()),
        (b"", set()),
    ],
)
def test_topics_are_read_if_there_are_any(metadata: bytes, topics: set[str]) -> None:
    scene = Scene()
    scene.stable_group(size=1, protocols=[("range", metadata)])
    assert subscribed_topics(scene.shard._groups[GROUP]) == topics
