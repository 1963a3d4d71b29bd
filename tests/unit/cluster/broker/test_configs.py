"""DescribeConfigs of topics, of one broker and of all brokers, with the sources of values."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import finish
from trimtab.cluster.broker.handlers.configs import describe_configs
from trimtab.cluster.config import BROKER, TOPIC
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
    ClusterImage,
)
from trimtab.kafka.options import PASSWORD, Option, read_given
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from trimtab.kafka.wire.messages.metadata_records import (
    BrokerEndpoint,
    ConfigRecord,
    RegisterBrokerRecord,
    TopicRecord,
)


@pytest.fixture
def broker() -> Any:
    """Broker 1, with some options given, some set for it, some for all, and some for topic `t`."""
    image = ClusterImage()
    image.replay(TopicRecord(name="t", topic_id=b"t" * 16))
    for kind, name, option, value in (
        (CONFIG_TOPIC, "t", "segment.bytes", "3000000"),
        (CONFIG_BROKER, "1", "log.segment.bytes", "2000000"),
        (CONFIG_BROKER, "1", "max.connections", "20"),
        (CONFIG_BROKER, "", "max.connections", "10"),
        (CONFIG_BROKER, "", "log.retention.ms", "9000000"),
        (CONFIG_BROKER, "2", "max.connections", "30"),
    ):
        image.replay(ConfigRecord(resource_type=kind, resource_name=name, name=option, value=value))
    given = read_given(BROKER, {"log.retention.hours": 100, "log.roll.hours": 1, "node.id": 1})
    return SimpleNamespace(id=1, image=image, given=given)


def describe(broker: Any, kind: int, name: str, *keys: str, **asked: bool) -> Any:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
            )
        ],
        **asked,
    )
    (result,) = finish(describe_configs(broker, None, request)).results  # type: ignore[arg-type]
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def values(result: Any) -> Mapping[str, tuple[Any, ...]]:
    assert (result.error_code, result.error_message) == (0, "")
    return {each.name: (each.value, each.config_source) for each in result.configs}


SOURCES = [
    (
        CONFIG_TOPIC,
        "t",
        "segment.bytes",
        "3000000",
        [
            ("segment.bytes", "3000000", 1),
            ("log.segment.bytes", "2000000", 2),
            ("log.segment.bytes", "1073741824", 5),
        ],
    ),
    (
        CONFIG_TOPIC,
        "t",
        "retention.ms",
        "9000000",
        [
            ("log.retention.ms", "9000000", 3),
            ("log.retention.hours", "100", 4),
            ("log.retention.hours", "168", 5),
        ],
    ),
    (
        CONFIG_TOPIC,
        "t",
        "segment.ms",
        "3600000",
        [("log.roll.hours", "1", 4), ("log.roll.hours", "168", 5)],
    ),
    (CONFIG_TOPIC, "t", "cleanup.policy", "delete", [("log.cleanup.policy", "delete", 5)]),
    (CONFIG_TOPIC, "t", "leader.replication.throttled.replicas", "", []),
    (
        CONFIG_BROKER,
        "1",
        "max.connections",
        "20",
        [
            ("max.connections", "20", 2),
            ("max.connections", "10", 3),
            ("max.connections", "2147483647", 5),
        ],
    ),
    (
        CONFIG_BROKER,
        "1",
        "log.retention.hours",
        "100",
        [("log.retention.hours", "100", 4), ("log.retention.hours", "168", 5)],
    ),
    (CONFIG_BROKER, "1", "log.roll.ms", None, []),
    (CONFIG_BROKER, "1", "num.partitions", "1", [("num.partitions", "1", 5)]),
    (CONFIG_BROKER, "", "max.connections", "10", [("max.connections", "10", 3)]),
]


@pytest.mark.kip(226)
@pytest.mark.parametrize(
    ("kind", "name", "option", "value", "synonyms"),
    SOURCES,
    ids=[f"{s[1]} {s[2]}" for s in SOURCES],
)
def test_a_value_is_shown_with_its_synonyms_by_precedence(
    broker: Any,
    kind: int,
    name: str,
    option: str,
    value: str | None,
    synonyms: list[tuple[str, str, int]],
) -> None:
    (entry,) = describe(broker, kind, name, option, include_synonyms=True).configs
    assert (entry.name, entry.value) == (option, value)
    assert entry.config_source == (synonyms[0][2] if synonyms else 5)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == synonyms
    (entry,) = describe(broker, kind, name, option).configs
    assert entry.synonyms == []


def test_unknown_broker_options_are_shown_as_in_kafka(broker: Any) -> None:
    for name, option in (("", "a.plugin"), ("1", "a.plugin"), ("", "b.plugin")):
        broker.image.replay(
            ConfigRecord(
                resource_type=CONFIG_BROKER, resource_name=name, name=option, value="s3cret"
            )
        )

    def shown(name: str, *keys: str) -> list[tuple[Any, ...]]:
        found = describe(broker, CONFIG_BROKER, name, *keys, include_synonyms=True).configs
        assert not [each for each in found if each.documentation]
        return [
            (
                *(each.name, each.value, each.config_source, each.config_type),
                *(each.read_only, each.is_sensitive),
                [(synonym.name, synonym.value, synonym.source) for synonym in each.synonyms],
            )
            for each in found
            if each.name.endswith(".plugin")
        ]

    of_all = [("a.plugin", None, 3)]
    of_one = [("a.plugin", None, 2), *of_all]
    a = ("a.plugin", None, 2, 0, True, True, of_one)
    b = ("b.plugin", None, 3, 0, True, True, [("b.plugin", None, 3)])
    assert shown("1") == [a, b]
    assert shown("1", "b.plugin", "num.partitions") == [b]
    assert shown("") == [("a.plugin", None, 3, 0, True, True, of_all), b]


@pytest.mark.parametrize(
    ("kind", "source", "option", "default", "value"),
    [
        (CONFIG_GROUP, 8, "consumer.session.timeout.ms", "45000", "50000"),
        (CONFIG_CLIENT_METRICS, 7, "interval.ms", "300000", "1000"),
    ],
)
def test_options_of_groups_and_client_metrics(
    broker: Any, kind: int, source: int, option: str, default: str, value: str
) -> None:
    assert values(describe(broker, kind, "it", option)) == {option: (default, 5)}
    broker.image.replay(
        ConfigRecord(resource_type=kind, resource_name="it", name=option, value=value)
    )
    assert values(describe(broker, kind, "it"))[option] == (value, source)
    (entry,) = describe(broker, kind, "it", option, include_synonyms=True).configs
    assert [(each.value, each.source) for each in entry.synonyms] == [(value, source), (default, 5)]
    assert not entry.read_only
    assert values(describe(broker, kind, "other", option)) == {option: (default, 5)}


def test_a_group_shows_the_brokers_value(broker: Any) -> None:
    option = "group.consumer.assignment.interval.ms"
    broker.image.replay(
        ConfigRecord(resource_type=CONFIG_BROKER, resource_name="", name=option, value="7")
    )
    name = "consumer.assignment.interval.ms"
    (entry,) = describe(broker, CONFIG_GROUP, "it", name, include_synonyms=True).configs
    assert (entry.value, entry.config_source) == ("7", 3)
    assert [(each.name, each.value) for each in entry.synonyms] == [(option, "7"), (option, "1000")]
    assert "no effect" not in (entry.documentation or "")


def test_all_options_of_a_topic_and_of_a_broker_are_shown(broker: Any) -> None:
    assert len(values(describe(broker, CONFIG_TOPIC, "t"))) == len(TOPIC)
    assert len(values(describe(broker, CONFIG_BROKER, "1"))) == len(BROKER)


def test_for_all_brokers_only_set_options_are_shown(broker: Any) -> None:
    assert values(describe(broker, CONFIG_BROKER, "")) == {
        "max.connections": ("10", 3),
        "log.retention.ms": ("9000000", 3),
    }


def test_a_stopped_brokers_options_are_shown_by_the_others(broker: Any) -> None:
    def register(fenced: bool) -> None:
        broker.image.replay(
            RegisterBrokerRecord(
                broker_id=2,
                broker_epoch=1,
                end_points=[
                    BrokerEndpoint(name="P", host="localhost", port=9092, security_protocol=0)
                ],
                rack=None,
                fenced=fenced,
            )
        )

    register(fenced=True)
    result = describe(broker, CONFIG_BROKER, "2", include_synonyms=True)
    assert values(result) == {"max.connections": ("30", 2)}
    assert [(each.value, each.source) for each in result.configs[0].synonyms] == [
        ("30", 2),
        ("10", 3),
    ]
    register(fenced=False)
    assert describe(broker, CONFIG_BROKER, "2").error_code == 42


def test_requested_options_are_shown_once_and_unknown_ones_not_at_all(broker: Any) -> None:
    keys = ("max.connections", "no.such", "max.connections", "segment.bytes")
    assert list(values(describe(broker, CONFIG_BROKER, "1", *keys))) == ["max.connections"]
    assert list(values(describe(broker, CONFIG_BROKER, "", "node.id"))) == []


@pytest.mark.parametrize(
    ("kind", "name", "option", "read_only"),
    [
        (CONFIG_TOPIC, "t", "segment.bytes", False),
        (CONFIG_BROKER, "1", "log.segment.bytes", False),
        (CONFIG_BROKER, "1", "node.id", True),
        (CONFIG_BROKER, "", "max.connections", False),
    ],
)
def test_options_that_need_a_restart_are_read_only(
    broker: Any, kind: int, name: str, option: str, read_only: bool
) -> None:
    (entry,) = describe(broker, kind, name, option).configs
    assert entry.read_only is read_only


def test_a_password_is_not_shown(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BROKER._options, "lab.key", Option("lab.key", PASSWORD, None, ""))
    broker.given.update(read_given(BROKER, {"lab.key": "s3cret"}))
    (entry,) = describe(broker, CONFIG_BROKER, "1", "lab.key", include_synonyms=True).configs
    assert (entry.value, entry.is_sensitive, entry.config_source) == (None, True, 4)
    assert [each.value for each in entry.synonyms] == [None]


def test_the_documentation_marks_options_without_effect(broker: Any) -> None:
    keys = ("num.io.threads", "num.partitions")
    unused, used = describe(broker, CONFIG_BROKER, "1", *keys, include_documentation=True).configs
    assert unused.documentation.endswith("(Described for Kafka's sake: it has no effect here.)")
    assert used.documentation == BROKER["num.partitions"].doc
    (entry,) = describe(broker, CONFIG_BROKER, "1", "num.partitions").configs
    assert entry.documentation is None


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (CONFIG_TOPIC, "x", 3, ""),
        (CONFIG_TOPIC, "", 17, "empty"),
        (CONFIG_TOPIC, "a b", 17, "a b"),
        (CONFIG_BROKER, "2", 42, "expected 1 or empty string, but received 2"),
        (CONFIG_BROKER, "x", 42, "expected 1 or empty string, but received x"),
        (CONFIG_GROUP, "", 42, "Group name must not be empty"),
        (CONFIG_CLIENT_METRICS, "", 42, "subscription name must not be empty"),
        (8, "1", 42, "Resource type 8 has no configs here"),
    ],
)
def test_resources_that_cannot_be_described_are_refused(
    broker: Any, kind: int, name: str, code: int, message: str
) -> None:
    result = describe(broker, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert message in result.error_message


async def test_a_broker_without_listeners_option_shows_its_bound_address(lab: Any) -> None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=CONFIG_BROKER,
                resource_name="0",
                configuration_keys=["advertised.listeners", "listeners"],
            )
        ]
    )
    (result,) = (await lab.connect().ask(request, 4)).results
    given_here = ("PLAINTEXT://127.0.0.1:9092", 4)
    assert values(result) == dict.fromkeys(("advertised.listeners", "listeners"), given_here)


def test_a_broker_shows_the_configured_addresses(lab: Any) -> None:
    given = {"listeners": "IN://:9092", "advertised.listeners": "IN://example.org:19092"}

    async def scenario() -> None:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=CONFIG_BROKER,
                    resource_name="0",
                    configuration_keys=list(given),
                )
            ]
        )
        (result,) = (await lab.connect().ask(request, 4)).results
        assert values(result) == {name: (value, 4) for name, value in given.items()}

    lab.run(scenario, config=given)
