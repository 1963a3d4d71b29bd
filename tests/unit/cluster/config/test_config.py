"""Options: accepted values, refused values, and the errors.

The options of brokers are in several files, such as `trimtab.cluster.config.coordinators`; those
without effect are made by `trimtab.cluster.config.unused`.
"""

from __future__ import annotations

import pytest

from trimtab.cluster.config.broker import BROKER
from trimtab.cluster.config.effective import (
    Setting,
    Settings,
    Source,
    check_topic,
    inherit,
    resolve,
    resolve_topic,
)
from trimtab.cluster.config.topic import TOPIC
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    READ_ONLY,
    SHORT,
    STRING,
    Form,
    Option,
    OptionTable,
    Password,
    Range,
    read,
    read_given,
    write,
)

TABLE = OptionTable(
    "lab",
    (
        Option("a.flag", BOOLEAN, False, ""),
        Option("a.number", INT, 5, "", Range(1, 10, (-1,))),
        Option("a.short", SHORT, 0, ""),
        Option("a.long", LONG, 0, ""),
        Option("a.ratio", DOUBLE, 0.5, "", Range(0, 1)),
        Option("a.word", STRING, "x", "", ("x", "y")),
        Option("a.list", LIST, (), "", ("x", "y")),
        Option("a.rack", STRING, None, ""),
        Option("a.pairs", LIST, (), "", Form(r"\d+:\d+", "*", "* or pairs")),
    ),
)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("a.flag", True, True),
        ("a.flag", "TRUE", True),
        ("a_flag", "false", False),
        ("a.number", 7, 7),
        ("a_number", " 7 ", 7),
        ("a.number", -1, -1),
        ("a.long", "9223372036854775807", 2**63 - 1),
        ("a.ratio", 1, 1.0),
        ("a.ratio", "0.25", 0.25),
        ("a.word", "y", "y"),
        ("a.list", "x, y", ("x", "y")),
        ("a.list", ["y"], ("y",)),
        ("a.list", "", ()),
        ("a.rack", None, None),
        ("a.pairs", "*", ("*",)),
        ("a.pairs", "0:1,10:2", ("0:1", "10:2")),
    ],
)
def test_values_are_read_in_either_spelling_and_as_text(
    name: str, given: object, value: object
) -> None:
    read_value = read(TABLE, {name: given})[name.replace("_", ".")]
    assert read_value == value
    assert type(read_value) is type(value)


def test_the_rest_have_their_defaults() -> None:
    assert read(TABLE, {"a.number": 1}) == {
        **{option.name: option.default for option in TABLE},
        "a.number": 1,
    }
    assert read_given(TABLE, {"a_number": 1}) == {"a.number": 1}


@pytest.mark.parametrize(
    ("name", "given", "fix"),
    [
        ("a.flag", 1, "true or false"),
        ("a.flag", "yes", "true or false"),
        ("a.number", True, "whole number that fits 32 bits"),
        ("a.number", 1.0, "whole number"),
        ("a.number", "1_0", "whole number"),
        ("a.number", "x", "whole number"),
        ("a.number", 0, "between 1 and 10 or -1"),
        ("a.number", 11, "between 1 and 10 or -1"),
        ("a.short", 2**15, "16 bits"),
        ("a.long", 2**63, "64 bits"),
        ("a.ratio", "nan", "a number"),
        ("a.ratio", 1.5, "between 0 and 1"),
        ("a.word", "z", "one of x, y"),
        ("a.word", 1, "one of x, y"),
        ("a.word", None, "a string"),
        ("a.list", "x,z", "one of x, y"),
        ("a.list", 5, "a list of strings"),
        ("a.list", [1], "a list of strings"),
        ("a.pairs", "0:1,*", "* or pairs"),
        ("a.pairs", "0:x", "* or pairs"),
        ("a.pairs", "\u0663:1", "* or pairs"),
    ],
)
def test_a_refusal_names_option_value_and_fix(name: str, given: object, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(TABLE, {name: given})
    message = str(refusal.value)
    assert message.startswith(f"lab {name}={given!r}: ")
    assert fix in message


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown lab option 'a_numbr': did you mean a\.number\?"):
        read(TABLE, {"a_numbr": 1})
    with pytest.raises(UsageError, match=r"unknown lab option 'zzz': known: a\.flag, a\.list"):
        read(TABLE, {"zzz": 1})


def test_both_spellings_of_one_option_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a\.number is given twice"):
        read(TABLE, {"a.number": 1, "a_number": 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (5, "5"), (0.5, "0.5"), (("x", "y"), "x,y"), (None, None)],
)
def test_values_are_written_as_kafka_writes_them(value: object, text: str | None) -> None:
    assert write(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [TOPIC, BROKER], ids=["topic", "broker"])
def test_every_default_fits_its_own_option(table: OptionTable) -> None:
    for option in table:
        assert option.check(option.default) == option.default
        assert option.check(write(option.default)) == option.default
        assert option.doc


def test_a_broker_without_options_gives_topics_the_topic_defaults() -> None:
    inherited = inherit(read(BROKER, {}))
    assert inherited == {option.name: option.default for option in TOPIC}


def test_topics_inherit_the_strongest_broker_option_in_their_unit() -> None:
    def retention(**given: int) -> object:
        return inherit(read(BROKER, given))["retention.ms"]

    assert retention(log_retention_hours=2) == 7_200_000
    assert retention(log_retention_hours=2, log_retention_minutes=3) == 180_000
    assert retention(log_retention_minutes=3, log_retention_ms=4) == 4
    assert retention(log_retention_hours=-1) == -1


# What the files in `config` of Apache Kafka 4.3's distribution set: server, broker and controller.
KAFKA_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.flush.interval.messages": "10000",
    "log.flush.interval.ms": "1000",
    "log.retention.hours": "168",
    "log.retention.bytes": "1073741824",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


def test_a_properties_file_of_kafka_is_read() -> None:
    values = read(BROKER, KAFKA_PROPERTIES)
    assert values["process.roles"] == ("broker", "controller")
    assert values["num.io.threads"] == 8


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ssl.keystore.location", "plain-text"),
        ("sasl.enabled.mechanisms", "plain-text"),
        ("authorizer.class.name", "there is no authorization"),
        ("listener.name.internal.max.connections", "without the listener's name"),
        ("remote.log.storage.system.enable", "no tiered storage"),
        ("zookeeper.connect", r"controller\.quorum\.voters"),
    ],
)
def test_options_whose_effect_users_rely_on_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"is not for trimtab: .*{reason}"):
        BROKER.find(name)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("log.retention.ms", CLUSTER_WIDE),
        ("log.retention.hours", READ_ONLY),
        ("log.cleaner.min.cleanable.ratio", CLUSTER_WIDE),
        ("min.insync.replicas", CLUSTER_WIDE),
        ("max.connections", CLUSTER_WIDE),
        ("leader.replication.throttled.rate", CLUSTER_WIDE),
        ("node.id", READ_ONLY),
        ("listeners", READ_ONLY),
    ],
)
@pytest.mark.kip(226)
def test_some_broker_options_change_while_it_runs(name: str, mode: object) -> None:
    assert BROKER[name].dynamic is mode


GIVEN = {"max.connections": 1, "log.retention.hours": 2, "num.partitions": 3}


@pytest.mark.kip(226)
@pytest.mark.parametrize(
    ("all_brokers", "broker", "connections"),
    [
        ({}, {}, 1),
        ({"max.connections": "10"}, {}, 10),
        ({"max.connections": "10"}, {"max.connections": "20"}, 20),
        ({}, {"max.connections": "20"}, 20),
    ],
)
def test_options_of_one_broker_override_those_of_all_and_those_the_given_ones(
    all_brokers: dict[str, str], broker: dict[str, str], connections: int
) -> None:
    values = resolve(GIVEN, all_brokers, broker)
    assert values == {**read(BROKER, GIVEN), "max.connections": connections}


def test_topics_inherit_the_options_of_their_broker() -> None:
    values = resolve(GIVEN, {"log.retention.ms": "5"}, {})
    assert resolve_topic(values, {})["retention.ms"] == 5
    assert resolve_topic(values, {"retention.ms": "6"})["retention.ms"] == 6
    assert resolve_topic(resolve(GIVEN, {}, {}), {})["retention.ms"] == 7_200_000


@pytest.mark.parametrize(
    ("all_brokers", "broker"),
    [
        ({"num.partitions": "9"}, {}),
        ({}, {"num.partitions": "9"}),
        ({"lab.own": "9"}, {}),
        ({"max.connections": "many"}, {}),
    ],
    ids=["read-only", "read-only for one", "per broker, for all", "no number"],
)
def test_invalid_options_in_the_metadata_are_ignored(
    all_brokers: dict[str, str],
    broker: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = Option("lab.own", INT, 5, "", dynamic=PER_BROKER)
    monkeypatch.setitem(BROKER._options, own.name, own)
    assert resolve(GIVEN, all_brokers, broker) == read(BROKER, GIVEN)
    assert len(caplog.records) == len(all_brokers) + len(broker)
    assert resolve(GIVEN, {}, {"lab.own": "9"})["lab.own"] == 9


def test_unknown_options_in_the_metadata_are_ignored_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = {"no.such.option": "9"}, {"ssl.keystore.type": "9"}
    assert resolve(GIVEN, *unknown) == read(BROKER, GIVEN)
    assert not caplog.records


def test_the_sources_of_an_option_the_effective_one_first() -> None:
    settings = Settings.read(
        {"log.retention.hours": 2, "log.flush.scheduler.interval.ms": 7},
        {"log.retention.ms": "3"},
        {"log.retention.ms": "4"},
    )
    two_hours = Setting("log.retention.hours", 2, Source.GIVEN)
    a_week = Setting("log.retention.hours", 168, Source.DEFAULT)
    four = Setting("log.retention.ms", 4, Source.BROKER)
    three = Setting("log.retention.ms", 3, Source.ALL_BROKERS)
    assert settings.of(BROKER["log.retention.ms"]) == [four, three, two_hours, a_week]
    assert settings.of(BROKER["log.retention.hours"]) == [two_hours, a_week]
    assert settings.of(BROKER["log.retention.minutes"]) == []
    assert settings.of_topic(TOPIC["retention.ms"], {}) == [four, three, two_hours, a_week]
    assert settings.of_topic(TOPIC["retention.ms"], {"retention.ms": "5"})[:2] == [
        Setting("retention.ms", 5, Source.TOPIC),
        four,
    ]
    assert settings.of(BROKER["log.flush.interval.ms"]) == []
    assert settings.of(BROKER["log.flush.scheduler.interval.ms"])[0].value == 7
    assert settings.of(BROKER["broker.rack"]) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"remote.storage.enable": "true"}, "no tiered storage"),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            r"min\.compaction\.lag\.ms=9: must be at most max\.compaction\.lag\.ms, which is 8",
        ),
    ],
)
def test_options_that_do_not_fit_together_are_refused(given: dict[str, str], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        check_topic(resolve_topic(read(BROKER, {}), given))


def test_passwords_are_kept_from_sight() -> None:
    table = OptionTable("lab", (Option("a.secret", PASSWORD, None, ""),))
    secret = read(table, {"a.secret": " s3cret "})["a.secret"]
    assert secret == Password(" s3cret ")
    assert f"{secret} {secret!r} {[secret]}" == "[hidden] [hidden] [[hidden]]"
    assert write(secret) is None
    with pytest.raises(UsageError) as refusal:
        read(table, {"a.secret": 12345})
    assert str(refusal.value) == "lab a.secret=[hidden]: must be a string"


def test_a_class_is_a_callable() -> None:
    table = OptionTable("lab", (Option("a.class", CLASS, None, ""),))
    assert read(table, {"a.class": max})["a.class"] is max
    with pytest.raises(UsageError, match=r"lab a\.class='max': must be a callable"):
        read(table, {"a.class": "max"})


def test_unsupported_options_are_refused_with_the_fix() -> None:
    refused = {"a.codec": "use a.number", "a.family.": "there is no family"}
    table = OptionTable("lab", (Option("a.family.name", STRING, "", ""),), refused)
    for name in ("a.codec", "a_codec"):
        with pytest.raises(UsageError, match=r"lab option a\.codec is not for .*: use a\.number"):
            table.find(name)
    with pytest.raises(UsageError, match=r"a\.family\.size is not for .*: there is no family"):
        table.find("a.family.size")
    assert table.find("a.family.name").name == "a.family.name"
    with pytest.raises(UsageError, match="unknown lab option"):
        table.find("a.codecs")


@pytest.mark.kip(1161)
@pytest.mark.parametrize("given", ["compact,delete,compact", ["compact", "delete", "delete"]])
def test_a_word_of_a_list_counts_once(given: object) -> None:
    assert TOPIC["cleanup.policy"].check(given) == ("compact", "delete")


@pytest.mark.kip(1161)
@pytest.mark.parametrize("given", ["", []])
def test_an_empty_cleanup_policy_keeps_everything(given: object) -> None:
    topic = {**resolve_topic(read(BROKER, {}), {}), "retention.ms": 1, "retention.bytes": 1}
    config = LogConfig.read({**topic, "cleanup.policy": TOPIC["cleanup.policy"].check(given)})
    assert (config.deletes, config.compacts) == (False, False)
