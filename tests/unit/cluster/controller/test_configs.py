"""Dynamic options: changes by each request, answered as by Kafka 4.3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trimtab.cluster.config import BROKER, resolve
from trimtab.cluster.controller.configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    decide_alter_configs,
    decide_incremental_alter_configs,
)
from trimtab.cluster.controller.decision import MAX_RECORDS, Decision
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    register_broker_record,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import INT, PER_BROKER, Option, read
from trimtab.kafka.wire.messages import alter_configs as legacy
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.messages.metadata_records import ClearElrRecord, ConfigRecord, TopicRecord

TOPIC, BROKERS = CONFIG_TOPIC, CONFIG_BROKER
METRICS, GROUP = CONFIG_CLIENT_METRICS, CONFIG_GROUP
Operation = tuple[str, int, str | None]


@pytest.fixture
def image() -> ClusterImage:
    """Brokers 0 and 1, and topic `t`, which keeps records for 5 ms."""
    image = ClusterImage()
    for number in range(2):
        broker = BrokerRegistration(number, number, bytes(16), "127.0.0.1", 9092 + number, None)
        image.replay(register_broker_record(broker))
    image.replay(TopicRecord(name="t", topic_id=b"t" * 16))
    put(image, TOPIC, "t", "retention.ms", "5")
    return image


def put(image: ClusterImage, kind: int, name: str, option: str, value: str) -> None:
    image.replay(ConfigRecord(resource_type=kind, resource_name=name, name=option, value=value))


def resource(kind: int, name: str, *operations: Operation) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=option, config_operation=operation, value=value)
            for option, operation, value in operations
        ],
    )


CONTROLLER = 3000


def alter(
    image: ClusterImage, *resources: AlterConfigsResource, validate_only: bool = False
) -> Decision:
    decision = decide_incremental_alter_configs(
        image,
        IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only),
        read(BROKER, {}),
        CONTROLLER,
    )
    for record in decision.records:
        image.replay(record)
    return decision


def replace(
    image: ClusterImage, kind: int, name: str, *configs: tuple[str, str | None]
) -> Decision:
    decision = decide_alter_configs(
        image,
        legacy.AlterConfigsRequest(
            resources=[
                legacy.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[legacy.AlterableConfig(name=key, value=text) for key, text in configs],
                )
            ]
        ),
        read(BROKER, {}),
        CONTROLLER,
    )
    for record in decision.records:
        image.replay(record)
    return decision


def codes(decision: Decision) -> list[Any]:
    return [each.error_code for each in decision.response.responses]


@pytest.mark.kip(578)
def test_the_controller_may_have_options_of_its_own(image: ClusterImage) -> None:
    """KIP-578 needs it: the limits set for the controller apply."""
    own = resource(BROKERS, str(CONTROLLER), ("max.partitions", SET, "9"))
    assert codes(alter(image, own)) == [ErrorCode.NONE]
    assert image.configs(BROKERS, str(CONTROLLER)) == {"max.partitions": "9"}


@pytest.mark.kip(339)
@pytest.mark.parametrize(
    ("kind", "name", "operations", "after"),
    [
        (TOPIC, "t", [("retention.ms", SET, "7")], {"retention.ms": "7"}),
        (TOPIC, "t", [("retention.ms", SET, " 07 ")], {"retention.ms": "7"}),
        (TOPIC, "t", [("retention.ms", DELETE, None)], {}),
        (TOPIC, "t", [("segment.ms", DELETE, None)], {"retention.ms": "5"}),
        (TOPIC, "t", [("no.such", DELETE, None)], {"retention.ms": "5"}),
        (
            TOPIC,
            "t",
            [("retention.ms", DELETE, None), ("segment.ms", SET, "9")],
            {"segment.ms": "9"},
        ),
        (BROKERS, "", [("max.connections", SET, "9")], {"max.connections": "9"}),
        (BROKERS, "1", [("max.connections", SET, "9")], {"max.connections": "9"}),
        (BROKERS, "1", [("node.id", DELETE, None)], {}),
        (BROKERS, "", [("log.cleanup.policy", APPEND, "compact")], None),
    ],
)
def test_options_are_set_and_unset(
    image: ClusterImage,
    kind: int,
    name: str,
    operations: list[Operation],
    after: dict[str, str] | None,
) -> None:
    assert codes(alter(image, resource(kind, name, *operations))) == [0]
    expected = {"log.cleanup.policy": "delete,compact"} if after is None else after
    assert image.configs(kind, name) == expected


@pytest.mark.kip(339)
@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        (None, APPEND, "delete", "delete"),
        ("compact", APPEND, "delete,compact", "compact,delete"),
        ("compact", APPEND, "delete, delete", "compact,delete"),
        ("compact", APPEND, "", "compact"),
        (None, SUBTRACT, "delete", ""),
        (None, SUBTRACT, "compact", "delete"),
        ("compact,delete", SUBTRACT, "delete,compact", ""),
        ("", SUBTRACT, "compact", ""),
    ],
)
def test_list_items_are_appended_and_subtracted(
    image: ClusterImage, before: str | None, operation: int, value: str, after: str
) -> None:
    if before is not None:
        put(image, TOPIC, "t", "cleanup.policy", before)
    assert codes(alter(image, resource(TOPIC, "t", ("cleanup.policy", operation, value)))) == [0]
    assert image.value(TOPIC, "t", "cleanup.policy") == after


@pytest.mark.parametrize(
    ("kind", "name", "operations", "code", "message"),
    [
        (TOPIC, "x", [("retention.ms", SET, "5")], 3, "The topic 'x' does not exist."),
        (TOPIC, "x", [("retention.ms", SET, "?")], 40, "retention.ms='?'"),
        (TOPIC, "", [("retention.ms", SET, "5")], 42, "Default topic resources are not allowed."),
        (TOPIC, "a b", [("retention.ms", SET, "5")], 17, "a b"),
        (TOPIC, "t", [("foo", SET, "5")], 40, "Unknown topic config name: foo"),
        (TOPIC, "t", [("retention.ms", SET, "x")], 40, "retention.ms='x': must be a whole number"),
        (TOPIC, "t", [("retention.ms", SET, "-2")], 40, "must be at least -1"),
        (TOPIC, "t", [("retention.ms", SET, None)], 42, "not supported for : retention.ms"),
        (TOPIC, "t", [("cleanup.policy", SET, "foo")], 40, "one of compact, delete"),
        (TOPIC, "t", [("cleanup.policy", 7, "compact")], 42, "Unknown operations type 7"),
        (
            TOPIC,
            "t",
            [("retention.ms", APPEND, "5")],
            40,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC,
            "t",
            [("foo", SUBTRACT, "5")],
            40,
            "Can't SUBTRACT to key foo because its type is not LIST.",
        ),
        (
            TOPIC,
            "t",
            [("segment.ms", SET, "1"), ("segment.ms", DELETE, None)],
            42,
            "Error due to duplicate config keys",
        ),
        (
            TOPIC,
            "t",
            [("leader.replication.throttled.replicas", SET, "0:1,x")],
            40,
            "must be * or a list of partition:broker",
        ),
        (TOPIC, "t", [("remote.storage.enable", SET, "true")], 40, "no tiered storage"),
        (TOPIC, "t", [("max.compaction.lag.ms", SET, "1")], 40, "min.compaction.lag.ms=2"),
        (8, "0", [("root", SET, "DEBUG")], 42, "(loggers of brokers) has no configs here"),
        (METRICS, "m", [("foo", SET, "1")], 42, "Unknown client metrics configuration: foo"),
        (METRICS, "m", [("interval.ms", SET, "99")], 40, "must be between 100 and 3600000"),
        (METRICS, "m", [("match", SET, "client_id")], 40, "must be a list of name=pattern"),
        (METRICS, "m", [("match", SET, "foo=1")], 40, "must be a list of name=pattern"),
        (METRICS, "", [("interval.ms", SET, "100")], 42, "Subscription name can't be empty"),
        (METRICS, "m", [("interval.ms", APPEND, "9")], 40, "Can't APPEND to key interval.ms"),
        (GROUP, "g", [("foo", SET, "1")], 40, "Unknown group config name: foo"),
        (
            GROUP,
            "g",
            [("consumer.session.timeout.ms", SET, "9")],
            40,
            "min.session.timeout.ms=45000",
        ),
        (GROUP, "g", [("consumer.assignment.interval.ms", SET, "-1")], 40, "at least 0"),
        (GROUP, "g", [("share.auto.offset.reset", SET, "by_duration:P")], 40, "by_duration:PnDTn"),
        (GROUP, "g", [("share.isolation.level", APPEND, "x")], 40, "Can't APPEND to key share.iso"),
        (GROUP, "", [("foo", SET, "1")], 42, "Default group resources are not allowed."),
        (99, "t", [("x", SET, "1")], 42, "Unknown resource type 99"),
        (BROKERS, "7", [("max.connections", SET, "9")], 102, "No node with id 7 found."),
        (BROKERS, "", [("max.partitions", SET, "-9")], 40, "max.partitions='-9'"),
        (BROKERS, "x", [("max.connections", SET, "9")], 42, "must be an integer, but it is: x"),
        (BROKERS, "01", [("max.connections", SET, "9")], 42, "must be an integer, but it is: 01"),
        (BROKERS, "-1", [("max.connections", SET, "9")], 42, "Invalid negative broker ID."),
        (BROKERS, "", [("max.connections", SET, "-8")], 42, "max.connections='-8'"),
        (BROKERS, "", [("ssl.key.password", SET, "1")], 40, "ssl.key.password is not for trimtab"),
        (BROKERS, "", [("foo.bar", APPEND, "1")], 40, "Unknown config name: foo.bar"),
        (
            BROKERS,
            "0",
            [("log.retention.ms", SUBTRACT, "5")],
            40,
            "Config value subtract is not allowed for config key: log.retention.ms",
        ),
        (
            BROKERS,
            "0",
            [("node.id", SET, "5"), ("log.retention.hours", SET, "1")],
            42,
            "Cannot update these configs dynamically: [log.retention.hours, node.id]",
        ),
        (
            BROKERS,
            "",
            [("lab.own", SET, "1")],
            42,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[lab.own]",
        ),
        (
            BROKERS,
            "0",
            [("min.insync.replicas", SET, "2")],
            40,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
    ],
)
def test_a_resource_that_cannot_be_altered_is_refused_alone(
    image: ClusterImage,
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
    name: str,
    operations: list[Operation],
    code: int,
    message: str,
) -> None:
    monkeypatch.setitem(
        BROKER._options, "lab.own", Option("lab.own", INT, 5, "", dynamic=PER_BROKER)
    )
    put(image, TOPIC, "t", "min.compaction.lag.ms", "2")
    before = dict(image.configs(kind, name))
    decision = alter(
        image,
        resource(kind, name, *operations, ("of.none", DELETE, None)),
        resource(BROKERS, "1", ("max.connections", SET, "9")),
    )
    refused, good = decision.response.responses
    assert (refused.resource_type, refused.resource_name) == (kind, name)
    assert (refused.error_code, good.error_code, good.error_message) == (code, 0, None)
    assert message in refused.error_message
    assert image.configs(kind, name) == before
    assert image.configs(BROKERS, "1") == {"max.connections": "9"}


@pytest.mark.kip(226)
def test_unknown_broker_options_are_kept(
    image: ClusterImage, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("", "0"):
        decision = alter(
            image,
            resource(BROKERS, name, ("a.plugin", SET, "s3cret"), ("max.connections", SET, "9")),
        )
        assert codes(decision) == [0]
        assert image.configs(BROKERS, name) == {"a.plugin": "s3cret", "max.connections": "9"}
    assert "unknown configs are kept broker=0 count=1 first='a.plugin'" in caplog.text
    assert "s3cret" not in caplog.text
    # Nor do they block changes of known options, in either spelling.
    decision = alter(image, resource(BROKERS, "0", ("max_connections", SET, "7")))
    assert codes(decision) == [0]
    caplog.clear()
    assert resolve({}, {}, image.configs(BROKERS, "0"))["max.connections"] == 9
    assert not caplog.text
    decision = alter(
        image,
        resource(BROKERS, "0", ("a.plugin", DELETE, None), ("max_connections", DELETE, None)),
    )
    assert codes(decision) == [0]
    assert image.configs(BROKERS, "0") == {"max.connections": "9"}


@pytest.mark.parametrize(
    ("kind", "option", "value", "kept"),
    [
        (GROUP, "consumer.session.timeout.ms", " 50000", "50000"),
        (GROUP, "share.auto.offset.reset", "earliest", "earliest"),
        (GROUP, "share.auto.offset.reset", "latest", "latest"),
        (GROUP, "share.auto.offset.reset", "by_duration:PT1H30M", "by_duration:PT1H30M"),
        (GROUP, "share.renew.acknowledge.enable", "FALSE", "false"),
        (METRICS, "metrics", "a,b", "a,b"),
        (
            METRICS,
            "match",
            "client_id=x.*, client_source_port=1",
            "client_id=x.*,client_source_port=1",
        ),
        (METRICS, "match", "", ""),
    ],
)
def test_groups_and_client_metrics_have_options_that_are_kept(
    image: ClusterImage, kind: int, option: str, value: str, kept: str
) -> None:
    assert codes(alter(image, resource(kind, "it", (option, SET, value)))) == [0]
    assert image.configs(kind, "it") == {option: kept}
    assert image.configured(kind) == ["it"]
    assert codes(alter(image, resource(kind, "it", (option, DELETE, None)))) == [0]
    assert image.configured(kind) == []


def test_a_duplicate_resource_is_refused_twice(image: ClusterImage) -> None:
    once = resource(TOPIC, "t", ("retention.ms", SET, "7"))
    decision = alter(image, once, once)
    assert codes(decision) == [ErrorCode.INVALID_REQUEST] * 2
    assert not decision.records


def test_unchanged_options_write_nothing(image: ClusterImage) -> None:
    decision = alter(
        image,
        resource(TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", DELETE, None)),
        resource(BROKERS, "", ("max.connections", DELETE, None)),
    )
    assert codes(decision) == [0, 0]
    assert not decision.records


def test_validate_only_writes_nothing(image: ClusterImage) -> None:
    decision = alter(
        image,
        resource(TOPIC, "t", ("retention.ms", SET, "7")),
        resource(TOPIC, "x", ("retention.ms", SET, "7")),
        validate_only=True,
    )
    assert codes(decision) == [0, 3]
    assert not decision.records


def test_one_request_has_a_limit(image: ClusterImage) -> None:
    names = [f"topic-{number}" for number in range(MAX_RECORDS // 2 + 1)]
    for number, name in enumerate(names):
        image.replay(TopicRecord(name=name, topic_id=number.to_bytes(16)))
    operations = (("retention.ms", SET, "7"), ("segment.ms", SET, "7"))
    decision = alter(image, *(resource(TOPIC, name, *operations) for name in names))
    assert codes(decision) == [0] * (len(names) - 1) + [ErrorCode.POLICY_VIOLATION]
    assert len(decision.records) == MAX_RECORDS


@pytest.mark.kip(966)
@pytest.mark.parametrize(
    ("kind", "name", "operation", "cleared"),
    [
        (TOPIC, "t", ("min.insync.replicas", SET, "2"), ["t"]),
        (TOPIC, "t", ("min.insync.replicas", DELETE, None), ["t"]),
        (BROKERS, "", ("min.insync.replicas", SET, "1"), [""]),
        (BROKERS, "", ("min.insync.replicas", DELETE, None), [""]),
        (TOPIC, "t", ("min.insync.replicas", SET, "3"), []),
        (TOPIC, "t", ("min.insync.replicas", SET, "4"), []),
        (TOPIC, "u", ("min.insync.replicas", SET, "2"), []),
        (TOPIC, "u", ("min.insync.replicas", SET, "1"), ["u"]),
        (TOPIC, "t", ("segment.ms", SET, "2"), []),
    ],
)
def test_a_lower_min_insync_replicas_clears_the_elrs(
    image: ClusterImage, kind: int, name: str, operation: Operation, cleared: list[str]
) -> None:
    image.replay(TopicRecord(name="u", topic_id=b"u" * 16))
    put(image, BROKERS, "", "min.insync.replicas", "2")
    put(image, TOPIC, "t", "min.insync.replicas", "3")
    records = alter(image, resource(kind, name, operation)).records
    assert [each.topic_name for each in records if isinstance(each, ClearElrRecord)] == cleared


def test_an_existing_invalid_value_does_not_block_other_options(
    image: ClusterImage,
) -> None:
    put(image, BROKERS, "0", "max.connections", "many")
    put(image, BROKERS, "0", "of.a.later.version", "1")
    assert codes(alter(image, resource(BROKERS, "0", ("log.retention.ms", SET, "9")))) == [0]
    assert image.value(BROKERS, "0", "log.retention.ms") == "9"
    alter(image, resource(BROKERS, "0", ("of.a.later.version", DELETE, None)))
    assert set(image.configs(BROKERS, "0")) == {"max.connections", "log.retention.ms"}


@pytest.mark.parametrize(
    ("configs", "after"),
    [
        ([("segment.ms", "9")], {"segment.ms": "9"}),
        ([("retention.ms", "5"), ("segment.ms", "9")], {"retention.ms": "5", "segment.ms": "9"}),
        ([], {}),
    ],
)
def test_replacing_options_unsets_those_that_are_not_named(
    image: ClusterImage, configs: Iterable[tuple[str, str]], after: dict[str, str]
) -> None:
    assert codes(replace(image, TOPIC, "t", *configs)) == [0]
    assert image.configs(TOPIC, "t") == after


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "t", [("retention.ms", None)], 42),
        (TOPIC, "t", [("foo", "1")], 40),
        (TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "1")], 42),
        (TOPIC, "x", [("retention.ms", "1")], 3),
        (BROKERS, "0", [("node.id", "7")], 42),
        (8, "0", [("x", "7")], 42),
    ],
)
def test_replacing_options_is_refused_as_altering_them_is(
    image: ClusterImage, kind: int, name: str, configs: Any, code: int
) -> None:
    decision = replace(image, kind, name, *configs)
    assert codes(decision) == [code]
    assert not decision.records
