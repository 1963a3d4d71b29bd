"""A cluster in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trimtab.pytest.virtual import VirtualKafka
from trimtab.sim.world import World


@pytest.fixture
def kafka(world: World) -> Iterator[VirtualKafka]:
    """Three brokers that serve, and soon delete what may be deleted."""
    kafka = VirtualKafka(world, 3, {"log.retention.check.interval.ms": 5000})
    kafka.start_all()
    yield kafka
    world.network.heal()
    world.loop.resume_all()
    kafka.close()
