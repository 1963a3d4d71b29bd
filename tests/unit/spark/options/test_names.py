from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import Option, write
from trimtab.spark.options.names import SINK, SOURCE
from trimtab.spark.options.sink import read_sink_options
from trimtab.spark.options.source import read_options, read_stream_options

ROOT = Path(__file__).resolve().parents[4]
REQUIRED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}


def defaults_for(kind: str) -> dict[str, str]:
    """What a user would write to get the defaults of a batch or a stream."""
    return {
        option.name: write(option.default) or ""
        for option in SOURCE
        if option.default and option.applies in ("", kind)
    }


def test_the_defaults_of_a_batch_are_the_ones_that_are_said() -> None:
    given = {**REQUIRED, **defaults_for("batch")}
    assert read_options(given) == read_options(REQUIRED)


def test_the_defaults_of_a_stream_are_the_ones_that_are_said() -> None:
    given = {**REQUIRED, **defaults_for("stream"), "startingOffsets": "latest"}
    assert read_stream_options(given) == read_stream_options(REQUIRED)


OTHERS = {
    "kafka.bootstrap.servers": "127.0.0.1:9093",
    "subscribe": "others",
    "subscribePattern": "f.*",
    "assign": '{"flights":[0]}',
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"flights":{"0":1}}',
    "startingOffsets": '{"flights":{"0":1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"flights":{"0":1}}',
    "endingOffsets": '{"flights":{"0":1}}',
    "maxPartitions": "unlimited",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "includeBatches": "true",
    "clientRack": "a",
    "maxTriggerDelay": "1m",
    "sizeSource": "probe",
    "commitGroup": "billing",
    "pushdown": "true",
}
"""Values that are not the defaults; of other options 7 is such a value."""


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize("option", SOURCE, ids=lambda option: option.name)
def test_an_option_has_an_effect_where_it_is_said_to(option: Option, kind: str) -> None:
    read = read_options if kind == "batch" else read_stream_options
    given = dict(REQUIRED)
    if option.name.endswith("Strategy"):
        given["startingTimestamp"] = "1"
    usual = dataclasses.replace(read(given), unused=())
    if option.name in ("subscribePattern", "assign"):
        del given["subscribe"]
    given[option.name] = OTHERS.get(option.name, "7")
    if kind == "stream" and option.name.startswith("ending"):
        with pytest.raises(UsageError, match="a stream has no end"):
            read(given)
        return
    found = read(given)
    has_effect = dataclasses.replace(found, unused=()) != usual
    is_said = option.applies in ("", kind) and option.name != "groupIdPrefix"
    assert has_effect or not is_said
    assert (option.name not in found.unused) is is_said  # what is unused, a warning names


def test_the_default_of_delivery_is_the_one_that_is_said() -> None:
    given = {option.name: write(option.default) or "" for option in SINK if option.default}
    servers = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "flights"}
    assert given
    assert read_sink_options({**servers, **given}) == read_sink_options(servers)


@pytest.mark.parametrize("option", [*SOURCE, *SINK], ids=lambda option: option.name)
def test_the_guide_has_every_option(option: Option) -> None:
    guide = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert re.search(rf"[`\"]{re.escape(option.name)}[`\"=]", guide)
