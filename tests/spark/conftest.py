"""One Spark session for all tests of this directory: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from trimtab.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("trimtab tests", cores=2)
    yield session
    stop_session(session)
