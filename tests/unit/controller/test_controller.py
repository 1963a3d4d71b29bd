"""The controller and its journal: what was decided is there after a restart, and whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from trimtab.broker.storage import StorageError
from trimtab.config import BROKER, read
from trimtab.controller.controller import Controller
from trimtab.controller.journal import PATH
from trimtab.errors import CorruptData, UsageError
from trimtab.metadata.image import ClusterImage
from trimtab.sim.disk import VirtualDisk
from trimtab.sim.world import World
from trimtab.wire.batch_cy import read_headers
from trimtab.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest


class Follower:
    def __init__(self) -> None:
        self.image = ClusterImage()

    def replay(self, records: Iterable[Any]) -> None:
        for record in records:
            self.image.replay(record)


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


@pytest.fixture
def start(disk: VirtualDisk) -> Callable[[], Controller]:
    return lambda: Controller(disk, read(BROKER, {}), lambda: 1_700_000_000_000, Random(3))


def create(controller: Controller, *names: str) -> list[int]:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[]
            )
            for name in names
        ]
    )
    with World(seed=1) as world:
        response = world.run(controller.create_topics(request))
    return [topic.error_code for topic in response.topics]


def brokers(count: int = 2) -> list[tuple[int, str, int, str | None]]:
    return [(number, "127.0.0.1", 9092 + number, None) for number in range(count)]


def state(image: ClusterImage) -> dict[str, Any]:
    return vars(image)


def test_decisions_survive_a_restart(start: Callable[[], Controller]) -> None:
    first = start()
    first.register_brokers(brokers())
    assert create(first, "a", "b") == [0, 0]
    with World(seed=1) as world:
        world.run(
            first.delete_topics(DeleteTopicsRequest(topics=[], topic_names=["a"], timeout_ms=1000))
        )
        block = world.run(first.allocate_producer_ids(0))
        first.close()
        second = start()
        assert state(second.image) == state(first.image)
        assert list(second.image.topics) == ["b"]
        assert world.run(second.allocate_producer_ids(1)) == (block.end, block.end + 1000)


def test_followers_have_everything_before_the_answer(start: Callable[[], Controller]) -> None:
    controller = start()
    controller.register_brokers(brokers())
    early, late = Follower(), Follower()
    controller.follow(early)
    create(controller, "a")
    controller.follow(late)
    create(controller, "b")
    assert state(early.image) == state(late.image) == state(controller.image)
    controller.unfollow(early)
    create(controller, "c")
    assert ("c" in early.image.topics, "c" in late.image.topics) == (False, True)


def test_a_brokers_epoch_is_the_offset_of_its_record(
    start: Callable[[], Controller], disk: VirtualDisk
) -> None:
    controller = start()
    epochs = [broker.epoch for broker in controller.register_brokers(brokers())]
    again = [broker.epoch for broker in controller.register_brokers(brokers())]
    assert (epochs, again) == ([1, 2], [3, 4])
    with pytest.raises(UsageError, match="broker id 0 is given twice"):
        controller.register_brokers(brokers(1) * 2)
    headers = read_headers(disk.open(PATH).read(0, 1 << 20))
    assert [header.base_offset for header in headers] == [0, 1, 3]
    assert {header.leader_epoch for header in headers} == {1}


def test_a_torn_decision_never_was(
    start: Callable[[], Controller], disk: VirtualDisk, caplog: pytest.LogCaptureFixture
) -> None:
    controller = start()
    controller.register_brokers(brokers())
    create(controller, "a")
    whole = disk.open(PATH).size
    create(controller, "b")
    journal = disk.open(PATH).read(0, 1 << 20)
    controller.close()
    for size in range(whole, len(journal)):
        disk.write_file(PATH, journal[:size])
        again = start()
        assert list(again.image.topics) == ["a"]
        assert disk.open(PATH).size == whole
        assert create(again, "b") == [0]
        again.close()
    assert "torn tail" in caplog.text


def test_a_decision_that_does_not_fit_the_disk_never_was(
    start: Callable[[], Controller], disk: VirtualDisk
) -> None:
    controller = start()
    controller.register_brokers(brokers())
    size, before = disk.open(PATH).size, state(controller.image)
    disk.capacity = disk.used + 100
    with pytest.raises(StorageError):
        create(controller, "a")
    assert (disk.open(PATH).size, state(controller.image)) == (size, before)
    disk.capacity = None
    assert create(controller, "a") == [0]
    controller.close()
    assert list(start().image.topics) == ["a"]


def test_a_flipped_bit_in_the_last_decision_takes_it_back(
    start: Callable[[], Controller], disk: VirtualDisk
) -> None:
    controller = start()
    controller.register_brokers(brokers())
    create(controller, "a")
    journal = bytearray(disk.open(PATH).read(0, 1 << 20))
    journal[-1] ^= 1
    disk.write_file(PATH, journal)
    assert not start().image.topics


def test_damage_before_the_end_is_an_error(
    start: Callable[[], Controller], disk: VirtualDisk
) -> None:
    controller = start()
    controller.register_brokers(brokers())
    create(controller, "a")
    journal = bytearray(disk.open(PATH).read(0, 1 << 20))
    journal[80] ^= 1
    disk.write_file(PATH, journal)
    with pytest.raises(CorruptData, match=r"at byte 0: .*restore the file from a copy"):
        start()
    journal[80] ^= 1
    first = read_headers(journal)[0].size
    disk.write_file(PATH, journal[first:])
    with pytest.raises(CorruptData, match="offset 1 where 0 should be"):
        start()
