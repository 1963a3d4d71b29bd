"""Placement terminates for all arguments, with a valid assignment or an error."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.balance.limits import Allowance, PartitionLimits
from trimtab.balance.placement import NoRoom, PlacementGoal, Room, count_placeable, place
from trimtab.cluster.controller.topics import decide_create
from trimtab.cluster.metadata.image import BrokerRegistration, ClusterImage, register_broker_record
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

NUMBERS = st.one_of(
    st.integers(-3, 12), st.sampled_from([-LONG_MAX, -1000, 100, 1000, LONG_MAX, 2**80])
)
BROKERS = st.lists(
    st.builds(
        Room,
        id=st.integers(-2, 12),
        rack=st.sampled_from([None, "", "a", "b", "c"]),
        replicas=NUMBERS,
        leaders=NUMBERS,
        free=NUMBERS,
    ),
    max_size=12,
)
COUNTS = st.one_of(st.integers(-2, 60), st.sampled_from([-(2**31), 300, 2**31 - 1, 2**63]))
FACTORS = st.one_of(st.integers(-2, 13), st.sampled_from([-32768, 32767, 2**40]))


def is_small(rooms: list[Room], partitions: int, factor: int) -> bool:
    """Whether the placeable replicas are few enough for a test."""
    return min(partitions, max([0, *(room.free for room in rooms)])) * factor <= 2_000


@settings(max_examples=500)
@given(
    rooms=BROKERS,
    partitions=COUNTS,
    factor=FACTORS,
    seed=st.integers(0, 99),
    goal=st.sampled_from(PlacementGoal),
)
def test_placement_ends(
    rooms: list[Room], partitions: int, factor: int, seed: int, goal: PlacementGoal
) -> None:
    most = count_placeable(rooms, partitions, factor)
    if not is_small(rooms, partitions, factor):
        return
    ids = Counter(room.id for room in rooms)
    if partitions < 1 or factor < 1 or max(ids.values(), default=0) > 1:
        with pytest.raises(ValueError, match=r"place at least one|given twice"):
            place(rooms, partitions, factor, Random(seed), goal)
        return
    if most < partitions:
        with pytest.raises(NoRoom) as refusal:
            place(rooms, partitions, factor, Random(seed), goal)
        assert refusal.value.most == most
        partitions = most
        if most == 0:
            return
    placed = place(rooms, partitions, factor, Random(seed), goal)
    assert len(placed) == partitions
    free = {room.id: room.free for room in rooms}
    taken = Counter(broker for replicas in placed for broker in replicas)
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    assert all(taken[broker] <= free[broker] for broker in taken)


@settings(max_examples=300)
@given(
    brokers=st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.booleans(), st.booleans()), max_size=6
    ),
    partitions=st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 7, 100, 9_999, 10_000, 2**31 - 1]),
    factor=st.sampled_from([-32768, -2, -1, 0, 1, 2, 3, 7, 32767]),
    per_broker=st.sampled_from([0, 1, 5, 2**31 - 1]),
    per_cluster=st.sampled_from([0, 1, 5, 2**31 - 1]),
)
def test_a_creation_is_carried_out_or_refused(
    brokers: list[tuple[str | None, bool, bool]],
    partitions: int,
    factor: int,
    per_broker: int,
    per_cluster: int,
) -> None:
    image = ClusterImage()
    for number, (rack, fenced, leaving) in enumerate(brokers):
        registration = BrokerRegistration(
            number, 100 + number, bytes(16), "h", 1, rack, fenced, leaving
        )
        image.replay(register_broker_record(registration))
    limits = PartitionLimits(per_broker, per_cluster)
    topic = CreatableTopic(
        name="t", num_partitions=partitions, replication_factor=factor, assignments=[], configs=[]
    )
    decision = decide_create(
        image,
        CreateTopicsRequest(topics=[topic]),
        {},
        Allowance(image.counts, limits, Counter()),
        Random(1),
    )
    (result,) = decision.response.topics
    for record in decision.records:
        image.replay(record)
    if result.error_code:
        assert result.error_message
        assert not decision.records
    else:
        created = image.topics["t"].partitions
        assert len(created) == result.num_partitions == (1 if partitions == -1 else partitions)
        assert image.counts.total <= per_cluster
        assert max(image.counts.on.values()) <= per_broker
