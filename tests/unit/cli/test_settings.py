"""The producer settings of our programs do what their labels say: none is without effect.

What is noticed too late is a line of the log that says "without effect". Every setting that a
program or a benchmark uses is made here into a partitioner, and nothing may be said about it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from lab.benchmarks.kip794 import PROPOSAL
from lab.demo.experiment import WAYS
from lab.experiments import kip480, kip794, kip1123
from trimtab.client.network.options import Options
from trimtab.client.options import PRODUCER
from trimtab.client.partitioner.factory import make_partitioner

GIVEN = {"bootstrap.servers": "127.0.0.1:9092"}
SETTINGS: dict[str, Mapping[str, object]] = {
    **{f"demo {way.name}": way.producer_settings for way in WAYS},
    **{f"kip480 {name}": way.settings for name, way in kip480.CONFIGURATIONS.items()},
    **{f"kip794 {name}": way.settings for name, way in kip794.CONFIGURATIONS.items()},
    **{f"kip1123 {name}": scene.settings for name, scene in kip1123.SCENES.items()},
    "kip1123 outage": kip1123.OUTAGE,
    **{f"kip794 Java {name}": settings for name, settings in PROPOSAL.java_settings.items()},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_is_said_about_the_settings_of_our_programs(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(PRODUCER, {**GIVEN, **SETTINGS[name]})
    make_partitioner(options, None, random.Random(0))
    assert caplog.messages == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_a_way_of_the_demo_hashes_keys_only_where_it_says_so(way: object) -> None:
    assert isinstance(way, type(WAYS[0]))
    maker = make_partitioner(
        Options(PRODUCER, {**GIVEN, **way.producer_settings}), None, random.Random(0)
    )
    assert maker.ignores_keys is not way.keyed
