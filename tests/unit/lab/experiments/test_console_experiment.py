"""The experiment by which users meet the sticky partitioner, with the tools they do it with.

Five lines are typed into the console producer of a topic with five partitions, ten seconds later
five more; or one line every ten seconds. Then the offsets tool shows where they went. Nobody waits
ten seconds here: what matters is that the earlier lines were sent, after `--timeout`, which is
linger.ms, before the next one is typed; so the next one is typed once the topic holds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest

from trimtab import Admin, Cluster, TopicPartition
from trimtab.cli import main

PARTITIONS = 5
PATIENCE_S = 30

Count = Callable[[], list[int]]
Type = Callable[..., list[list[int]]]


class Keyboard:
    """Standard input at which groups of lines are typed, each once the one before it is stored.

    `seen` is what the topic's partitions held before each group, and is empty-handed at the end.
    """

    def __init__(self, groups: Sequence[Sequence[str]], count: Count) -> None:
        self.seen: list[list[int]] = []
        self._groups = [list(group) for group in groups]
        self._count = count
        self._typed = 0
        self._lines = self._type()

    @property
    def buffer(self) -> Keyboard:
        return self

    def isatty(self) -> bool:
        return False

    def readline(self) -> bytes:
        return next(self._lines, b"")

    def _type(self) -> Iterator[bytes]:
        for group in self._groups:
            self._wait()
            for line in group:
                self._typed += 1
                yield line.encode() + b"\n"

    def _wait(self) -> None:
        began = time.monotonic()
        while sum(offsets := self._count()) < self._typed:
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"{self._typed} lines were typed, the topic holds {offsets}")
        self.seen.append(offsets)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def type_lines(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Type]:
    """Types groups of lines into a new topic; what its partitions held before each, and at last."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:

        def type_lines(topic: str, groups: Sequence[Sequence[str]], *words: str) -> list[list[int]]:
            admin.create_topic(topic, partitions=PARTITIONS)
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

            def count() -> list[int]:
                ends = admin.list_offsets(partitions)
                return [ends[partition].offset for partition in partitions]

            keyboard = Keyboard(groups, count)
            monkeypatch.setattr("sys.stdin", keyboard)
            assert main(["produce", "--topic", topic, *servers, *words]) == 0
            capfd.readouterr()
            assert main(["offsets", "--topic", topic, *servers]) == 0
            lines = capfd.readouterr().out.split()
            assert [line.rpartition(":")[0] for line in lines] == [
                f"{topic}:{number}" for number in range(PARTITIONS)
            ]
            return [*keyboard.seen, [int(line.rpartition(":")[2]) for line in lines]]

        yield type_lines


FIVE_AND_FIVE = (("1", "2", "3", "4", "5"), ("6", "7", "8", "9", "10"))
ONE_BY_ONE = tuple((str(number),) for number in range(1, 6))
STICKY = ("--producer-property", "partitioner.class=sticky")
SOON = ("--timeout", "20")


@pytest.mark.kip(480)
def test_sticky_five_lines_at_once_share_a_partition_and_the_next_five_another(
    type_lines: Type,
) -> None:
    _, first, both = type_lines("sticky-five", FIVE_AND_FIVE, *STICKY)
    assert sorted(first) == [0, 0, 0, 0, 5]
    assert sorted(both) == [0, 0, 0, 5, 5]


@pytest.mark.kip(480)
def test_sticky_lines_typed_apart_never_follow_each_other_into_a_partition(
    type_lines: Type,
) -> None:
    seen = type_lines("sticky-one", ONE_BY_ONE, *STICKY, *SOON)
    chosen = [
        next(number for number in range(PARTITIONS) if after[number] > before[number])
        for before, after in pairwise(seen)
    ]
    assert len(chosen) == len(ONE_BY_ONE)
    assert all(one != next_one for one, next_one in pairwise(chosen))


@pytest.mark.kip(794)
def test_uniform_all_ten_lines_share_a_partition(type_lines: Type) -> None:
    """A turn lasts until batch.size bytes are produced, however long that takes."""
    _, first, both = type_lines("uniform-five", FIVE_AND_FIVE)
    assert sorted(first) == [0, 0, 0, 0, 5]
    assert both == [2 * count for count in first]


@pytest.mark.kip(794)
def test_uniform_lines_typed_apart_share_a_partition(type_lines: Type) -> None:
    assert sorted(type_lines("uniform-one", ONE_BY_ONE, *SOON)[-1]) == [0, 0, 0, 0, 5]
