"""The cluster of all tests here: three brokers, of which one may die."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def kafka_options() -> dict[str, Any]:
    replicated = {"default.replication.factor": 3, "min.insync.replicas": 2}
    return {"brokers": 3, "config": replicated}
