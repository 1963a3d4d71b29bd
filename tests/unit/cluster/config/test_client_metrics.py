"""The options of a subscription to clients' metrics are those of Apache Kafka 4.3.0."""

from __future__ import annotations

import pytest

from trimtab.cluster.config.client_metrics import CLIENT_METRICS
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import write


def test_names_and_defaults() -> None:
    assert {option.name: write(option.default) for option in CLIENT_METRICS} == {
        "interval.ms": "300000",
        "match": "",
        "metrics": "",
    }


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("client_software_name=apache-kafka-java, client_software_version=4.*", True),
        ("client_instance_id = x", True),
        ("", True),
        ("client_id", False),
        ("client_id=", False),
        ("client_id=a=b", False),
        ("rack=a", False),
        ("client_id=a,", False),
    ],
)
def test_the_patterns_that_match_clients(text: str, fits: bool) -> None:
    if fits:
        assert CLIENT_METRICS["match"].check(text) is not None
    else:
        with pytest.raises(UsageError, match="name=pattern"):
            CLIENT_METRICS["match"].check(text)
