from __future__ import annotations

import pytest

from trimtab.cluster.config import BROKER
from trimtab.cluster.config.node import (
    BROKER_ROLE,
    CONTROLLER_ROLE,
    Given,
    NodeConfig,
    format_address,
    parse_address,
    read_node,
)
from trimtab.cluster.config.properties import parse_properties
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import read

# The files in Apache Kafka 4.3's distribution, without comments.
KAFKA_BROKER = """
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-broker-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
KAFKA_CONTROLLER = """
process.roles=controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=CONTROLLER://:9093
advertised.listeners=CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-controller-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
LEAST = "node.id=0\ncontroller.quorum.bootstrap.servers=c:9093\n"


def broker(text: str) -> NodeConfig:
    return read_as(BROKER_ROLE, text)


def controller(text: str) -> NodeConfig:
    return read_as(CONTROLLER_ROLE, text)


def read_as(role: str, text: str) -> NodeConfig:
    found = parse_properties(text, "f")
    return read_node(
        role, {name: Given(each.value, f"f, line {each.line}") for name, each in found.items()}
    )


def test_the_files_that_come_with_kafka_are_understood() -> None:
    found = broker(KAFKA_BROKER)
    address = ("localhost", 9092)
    assert found[:5] == (2, address, address, ("localhost", 9093), "/tmp/kraft-broker-logs")
    assert read(BROKER, found.options)["log.retention.hours"] == 168
    found = controller(KAFKA_CONTROLLER)
    assert found[:5] == (
        1,
        ("0.0.0.0", 9093),
        ("localhost", 9093),
        None,
        "/tmp/kraft-controller-logs",
    )


def test_without_listeners_a_node_listens_on_loopback() -> None:
    assert broker(LEAST)[:5] == (0, ("127.0.0.1", 9092), None, ("c", 9093), None)
    assert controller("")[:5] == (3000, ("127.0.0.1", 9093), None, None, None)


def test_options_that_contradict_each_other_are_refused() -> None:
    rare = "group.consumer.heartbeat.interval.ms=100\n"
    with pytest.raises(UsageError, match=r"group\.consumer\.min\.heartbeat\.interval\.ms=5000"):
        broker(LEAST + rare)
    broker(f"{LEAST}{rare}group.consumer.min.heartbeat.interval.ms=100\n")


def test_voters_name_the_controller_too() -> None:
    voters = "controller.quorum.voters=7@c:9093\n"
    assert broker(f"node.id=0\n{voters}").controller == ("c", 9093)
    assert controller(voters).id == 7
    assert controller(f"node.id=7\n{voters}").id == 7


def test_older_names_count_where_the_newer_are_not_given() -> None:
    found = broker("broker.id=4\nlog.dir=/old\ncontroller.quorum.voters=7@c:9093\n")
    assert (found.id, found.directory) == (4, "/old")
    assert (found.options["node.id"], found.options["broker.id"]) == (4, 4)


def test_a_listener_may_have_any_name_that_means_plain_text() -> None:
    text = f"{LEAST}listener.security.protocol.map=IN:PLAINTEXT, OUT:SSL\n"
    assert broker(f"{text}listeners=IN://[::1]:19092").listen == ("::1", 19092)
    assert controller("controller.listener.names=C\nlisteners=C://h:1").listen == ("h", 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("process.roles=broker,controller", "a process has one role.*process.roles=broker here"),
        ("process.roles=controller", "this is for `trimtab controller`, not for `trimtab broker`"),
        ("listeners=SSL://h:9093", "SSL is not supported.*write PLAINTEXT://h:9093"),
        ("listeners=SASL_PLAINTEXT://h:1", "SASL_PLAINTEXT is not supported"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://b:2", "a broker has one listener; keep one"),
        ("listeners=h:9092", "write NAME://host:port"),
        ("listeners=PLAINTEXT://h:65536", "write NAME://host:port"),
        ("listeners=OUT://h:9092", "the protocol of OUT is not given; .*map=OUT:PLAINTEXT"),
        ("listeners=CONTROLLER://h:1\ncontroller.listener.names=CONTROLLER", "write the broker's"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "clients cannot connect to this host"),
        ("advertised.listeners=PLAINTEXT://:9092", "clients cannot connect to this host"),
        ("listeners=PLAINTEXT://a:1\nadvertised.listeners=OUT://b:2", "the one listener is PLAIN"),
        ("inter.broker.listener.name=IN\nlisteners=PLAINTEXT://a:1", "the one listener is PLAIN"),
        ("listener.security.protocol.map=X\nlisteners=X://h:1", "'X' is not NAME:PROTOCOL"),
        ("log.dirs=/a,/b", "a node has one directory; keep one"),
        ("broker.id=1", "it differs from node.id=0; keep one of them"),
        ("controller.quorum.voters=1@a:1,2@b:1", "there is one controller, and no other voter"),
        ("controller.quorum.voters=a:1", "write id@host:port, such as 3000@127.0.0.1:9093"),
        ("num.partitions=x", "num.partitions='x': must be a whole number"),
        ("num.partition=1", "did you mean num.partitions"),
        ("ssl.keystore.location=/k", "ssl.keystore.location is not for trimtab"),
        ("sasl.enabled.mechanisms=PLAIN", "sasl.enabled.mechanisms is not for trimtab"),
    ],
)
def test_unsupported_options_are_refused_with_their_source_and_the_fix(
    line: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=rf"f, line [34]: .*{reason}"):
        broker(LEAST + line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("process.roles=broker", "this is for `trimtab broker`, not for `trimtab controller`"),
        ("node.id=1\ncontroller.quorum.voters=2@a:1", "this one is node 1; write its id@host:port"),
        ("listeners=C://a:1\ncontroller.listener.names=D", "the protocol of C is not given"),
        (
            "listeners=PLAINTEXT://a:1\ncontroller.listener.names=CONTROLLER",
            "the one listener is PLAINTEXT",
        ),
    ],
)
def test_a_controllers_file_is_checked_too(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        controller(text)


def test_a_missing_option_of_a_broker_is_named() -> None:
    with pytest.raises(UsageError, match=r"a broker needs an id: give --id, or node\.id"):
        broker("controller.quorum.bootstrap.servers=c:9093")
    with pytest.raises(
        UsageError, match="a broker needs a controller's address: give --controller"
    ):
        broker("node.id=0")
    for servers, reason in (("a:1,b:2", "there is one controller"), ("a", "'a' is no address")):
        with pytest.raises(UsageError, match=f"f, line 2: .*{reason}"):
            broker(f"node.id=0\ncontroller.quorum.bootstrap.servers={servers}")


def test_addresses_have_brackets_around_colons() -> None:
    for text, address in (("h:1", ("h", 1)), ("[::1]:65535", ("::1", 65535))):
        assert parse_address(text) == address
        assert format_address(*address) == text
    for text in ("h", "h:", ":1", "::1:9092", "h:65536", "a b://c"):
        with pytest.raises(UsageError, match=r"write host:port"):
            parse_address(text)
