"""The programs of docs/testcontainers.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.processes import free_ports

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/testcontainers.md").read_text()
SERVERS, NEW_TEST, ENVIRONMENT, PORT = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
TEST = """
import os
from confluent_kafka import Producer

def test_a_record_is_stored({fixture}, kafka_topic, kafka_records):
    producer = Producer({{"bootstrap.servers": {servers}}})
    producer.produce(kafka_topic, b"value")
    producer.flush()
    assert [record.value for record in kafka_records(kafka_topic, count=1)] == [b"value"]
"""


def run(pytester: pytest.Pytester, conftest: str, test: str) -> None:
    pytester.makeconftest(conftest)
    pytester.makepyfile(test)
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"
    )
    done.assert_outcomes(passed=1)


def test_the_old_fixture_is_the_plugins_cluster(pytester: pytest.Pytester) -> None:
    run(pytester, SERVERS, TEST.format(fixture="servers", servers="servers"))


def test_a_new_test_needs_no_fixture_of_its_own(pytester: pytest.Pytester) -> None:
    run(pytester, "", NEW_TEST)


def test_the_environment_has_the_address(pytester: pytest.Pytester) -> None:
    run(
        pytester, ENVIRONMENT, TEST.format(fixture="request", servers='os.environ["KAFKA_SERVERS"]')
    )


def test_the_cluster_has_the_usual_port(pytester: pytest.Pytester) -> None:
    """Here it is another: 9092 may be in use."""
    (port,) = free_ports(1)
    assert "9092" in PORT
    conftest = PORT.replace("9092", str(port))
    run(pytester, conftest, TEST.format(fixture="kafka_cluster", servers=f'"localhost:{port}"'))
