"""Starts of Spark that fail, beside a session that this process has already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trimtab.spark
from trimtab.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_start_that_fails_leaves_an_earlier_session_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: SparkSession) -> None:
        raise LookupError("no format")

    monkeypatch.setattr(trimtab.spark, "register", refuse)
    with pytest.raises(LookupError, match="no format"):
        start_session("another")
    assert spark.range(3).count() == 3
