from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from trimtab.spark.options.names import SINK, SOURCE, SparkOption
from trimtab.spark.options.sink import read_sink_options
from trimtab.spark.options.source import read_options, read_stream_options

ROOT = Path(__file__).resolve().parents[4]
REQUIRED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}


def defaults_for(kind: str) -> dict[str, str]:
    """What a user would write to get the defaults of a batch or a stream."""
    return {
        option.name: option.default
        for option in SOURCE
        if option.default and option.applies in ("", kind)
    }


def test_the_defaults_of_a_batch_are_the_ones_that_are_said() -> None:
    given = {**REQUIRED, **defaults_for("batch")}
    assert read_options(given) == read_options(REQUIRED)


def test_the_defaults_of_a_stream_are_the_ones_that_are_said() -> None:
    given = {**REQUIRED, **defaults_for("stream"), "startingOffsets": "latest"}
    assert read_stream_options(given) == read_stream_options(REQUIRED)


def test_an_option_of_streams_has_no_effect_on_a_batch() -> None:
    values = {"maxTriggerDelay": "1m", "sizeSource": "probe", "commitGroup": "billing"}
    streams = {option.name: "1" for option in SOURCE if option.applies == "stream"} | values
    read = read_options({**REQUIRED, **streams})
    assert set(read.unused) == set(streams)
    assert dataclasses.replace(read, unused=()) == read_options(REQUIRED)


def test_the_default_of_delivery_is_the_one_that_is_said() -> None:
    given = {option.name: option.default for option in SINK if option.default}
    servers = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "flights"}
    assert given
    assert read_sink_options({**servers, **given}) == read_sink_options(servers)


@pytest.mark.parametrize("option", [*SOURCE, *SINK], ids=lambda option: option.name)
def test_the_guide_has_every_option(option: SparkOption) -> None:
    guide = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert re.search(rf"[`\"]{re.escape(option.name)}[`\"=]", guide)
