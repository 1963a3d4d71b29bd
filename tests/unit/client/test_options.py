"""The options of producer, consumer and admin against Kafka's own, and against each other.

Long because the options of three clients are compared with each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trimtab.client.network.authentication import OAuthBearer, Plain, Scram
from trimtab.client.network.connection_options import connection_options
from trimtab.client.network.jaas import parse_jaas_config
from trimtab.client.network.options import Options
from trimtab.client.network.refused_options import FOREIGN, NO_OPS
from trimtab.client.options import (
    ADMIN,
    CONSUMER,
    PRODUCER,
    consumer_options,
    gather_options,
    producer_options,
)
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import INT_MAX, OptionTable, Password, write

SERVER = "127.0.0.1:9092"

KAFKA_PRODUCER: Mapping[str, object] = {
    "acks": "all",
    "batch.size": 16384,
    "bootstrap.servers": (),
    "buffer.memory": 33554432,
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "",
    "client.rack": "",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "none",
    "compression.zstd.level": 3,
    "connections.max.idle.ms": 540000,
    "delivery.timeout.ms": 120000,
    "enable.idempotence": True,
    "linger.ms": 5,
    "max.block.ms": 60000,
    "max.in.flight.requests.per.connection": 5,
    "max.request.size": 1048576,
    "metadata.max.age.ms": 300000,
    "metadata.max.idle.ms": 300000,
    "metadata.recovery.rebootstrap.trigger.ms": 300000,
    "metadata.recovery.strategy": "rebootstrap",
    "metrics.num.samples": 2,
    "metrics.sample.window.ms": 30000,
    "partitioner.adaptive.partitioning.enable": True,
    "partitioner.availability.timeout.ms": 0,
    "partitioner.class": None,
    "partitioner.ignore.keys": False,
    "partitioner.rack.aware": False,
    "receive.buffer.bytes": 32768,
    "reconnect.backoff.max.ms": 1000,
    "reconnect.backoff.ms": 50,
    "request.timeout.ms": 30000,
    "retries": INT_MAX,
    "retry.backoff.max.ms": 1000,
    "retry.backoff.ms": 100,
    "sasl.jaas.config": None,
    "sasl.login.callback.handler.class": None,
    "sasl.login.retry.backoff.max.ms": 10_000,
    "sasl.login.retry.backoff.ms": 100,
    "sasl.oauthbearer.client.credentials.client.id": None,
    "sasl.oauthbearer.client.credentials.client.secret": None,
    "sasl.oauthbearer.header.urlencode": False,
    "sasl.oauthbearer.scope": None,
    "sasl.oauthbearer.token.endpoint.url": None,
    "security.protocol": "PLAINTEXT",
    "send.buffer.bytes": 131072,
    "socket.connection.setup.timeout.max.ms": 30000,
    "socket.connection.setup.timeout.ms": 10000,
    "ssl.cipher.suites": (),
    "ssl.enabled.protocols": ("TLSv1.2", "TLSv1.3"),
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.key.password": None,
    "ssl.keystore.certificate.chain": None,
    "ssl.keystore.key": None,
    "ssl.keystore.location": None,
    "ssl.truststore.certificates": None,
    "ssl.truststore.location": None,
    "transaction.timeout.ms": 60000,
    "transaction.two.phase.commit.enable": False,
    "transactional.id": None,
}
"""The options that Kafka 4.4's `ProducerConfig` and ours share, with its defaults."""

OTHER_DEFAULTS: Mapping[str, object] = {
    "sasl.login.connect.timeout.ms": 10_000,  # Kafka: none, so for ever
    "sasl.login.read.timeout.ms": 10_000,
    "sasl.mechanism": None,  # Kafka: GSSAPI
    "ssl.keystore.type": "PEM",  # Kafka: JKS
    "ssl.truststore.type": "PEM",
}

OURS = {
    "partitioner.balance": None,
    "partitioner.compat": "kip",
    "partitioner.hot.keys": None,
    "partitioner.keys.shown": False,
    "partitioner.rack.aware.strict": False,
    "sasl.oauthbearer.token": None,
    "sasl.password": None,
    "sasl.username": None,
}

KAFKA_PRODUCER_REFUSED = """
bootstrap.resolve.timeout.ms buffer.memory.allocation.strategy config.providers enable.metrics.push
interceptor.classes key.serializer metadata.cluster.check.enable metric.reporters
metrics.recording.level sasl.client.callback.handler.class sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.class sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.oauthbearer.allow.unverified.audience
sasl.oauthbearer.allow.unverified.issuer sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class
sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.sub.claim.name security.providers ssl.engine.factory.class ssl.keymanager.algorithm
ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.password value.serializer
"""
"""The rest of Kafka 4.4's `ProducerConfig`."""


def options(table: OptionTable = PRODUCER, **given: object) -> Options:
    return Options(table, {"bootstrap.servers": SERVER, **given})


def checked(**given: object) -> Options:
    return producer_options(SERVER, given)[0]


def test_every_option_of_kafkas_producer_is_taken_or_refused_with_a_reason() -> None:
    assert {option.name: option.default for option in PRODUCER} == {
        **KAFKA_PRODUCER,
        **OTHER_DEFAULTS,
        **OURS,
    }
    for name in KAFKA_PRODUCER_REFUSED.split():
        for spelling in (name, name.replace(".", "_")):
            with pytest.raises(UsageError, match=rf"option {name} is not for trimtab: \w+"):
                checked(**{spelling: "x"})


@pytest.mark.parametrize("table", [PRODUCER, CONSUMER, ADMIN], ids=lambda table: table.kind)
def test_every_option_is_taken_in_both_spellings_and_as_text(table: OptionTable) -> None:
    for option in table:
        assert option.doc.endswith(".") or option.doc.endswith(";") or "…" in option.doc
        if option.default is not None:
            assert option.check(write(option.default)) == option.default
        assert table.find(option.name.replace(".", "_")) is option


@pytest.mark.parametrize(
    ("table", "defaults"),
    [
        (PRODUCER, {"receive.buffer.bytes": 32768, "connections.max.idle.ms": 540000}),
        (CONSUMER, {"receive.buffer.bytes": -1, "connections.max.idle.ms": 540000}),
        (ADMIN, {"receive.buffer.bytes": 65536, "connections.max.idle.ms": 300000}),
    ],
    ids=lambda value: value.kind if isinstance(value, OptionTable) else "",
)
def test_defaults_that_differ_between_kinds_of_clients(
    table: OptionTable, defaults: dict[str, object]
) -> None:
    assert {name: table[name].default for name in defaults} == defaults


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"batch_sise": 1}, r"did you mean batch\.size\?"),
        ({"linger.ms": -1}, r"linger\.ms=-1: must be at least 0"),
        ({"compression_gzip_level": 10}, "between 1 and 9 or -1"),
        ({"compression_gzip_level": 0}, "between 1 and 9 or -1"),
        ({"compression_lz4_level": 18}, "between 1 and 17"),
        ({"compression_zstd_level": 23}, "between -131072 and 22"),
        ({"metadata_max_idle_ms": 4999}, "at least 5000"),
        ({"metrics_num_samples": 0}, "at least 1"),
        ({"partitioner_compat": "go"}, "one of kip, java"),
        ({"partitioner_balance": "tea"}, "strict, free, or a number above 0 and up to 1"),
        ({"send_buffer_bytes": -2}, "at least 0 or -1"),
        ({"security_protocol": "TLS"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl_mechanism": "GSSAPI"}, "one of PLAIN, SCRAM-SHA-256"),
        ({"ssl_truststore_type": "JKS"}, "one of PEM"),
        ({"ssl_truststore_password": "x"}, "have no password of their own"),
        ({"sasl_oauthbearer_token": "x"}, "must be a callable"),
        ({"key_serializer": "x"}, "bytes"),
        ({"enable_metrics_push": True}, r"KIP-714.*leave it out"),
        # against each other
        (
            {"delivery_timeout_ms": 1000},
            r"delivery\.timeout\.ms=1000 must be at least linger\.ms \+ request\.timeout\.ms = "
            r"5 \+ 30000 = 30005",
        ),
        ({"enable_idempotence": True, "acks": "1"}, "needs acks=all, acks is 1"),
        ({"enable_idempotence": "true", "acks": "0"}, "needs acks=all, acks is 0"),
        ({"enable_idempotence": True, "retries": 0}, "needs retries of at least 1, retries is 0"),
        (
            {"max_in_flight_requests_per_connection": 6},
            r"at most 5, it is 6; lower it or set enable\.idempotence=false",
        ),
        ({"transactional_id": ""}, "must not be empty"),
        ({"transactional_id": "t", "acks": "1"}, "'t' needs acks=all, acks is 1"),
        ({"transactional_id": "t", "retries": 0}, "needs retries of at least 1, retries is 0"),
        (
            {"transactional_id": "t", "enable_idempotence": False},
            r"'t' needs enable\.idempotence=true, it is false",
        ),
    ],
)
def test_refusals_of_a_producer(given: dict[str, object], why: str) -> None:
    """The same cases as in Apache Kafka 4.4.0, whose producer refuses them too."""
    with pytest.raises(UsageError, match=why):
        checked(**given)


def test_idempotence_is_quietly_off_where_it_was_not_asked_for() -> None:
    assert checked().flag("enable.idempotence")
    assert not checked(acks="1").flag("enable.idempotence")
    assert not checked(acks="0", max_in_flight_requests_per_connection=9).flag("enable.idempotence")
    assert not checked(retries=0).flag("enable.idempotence")
    assert checked(acks="-1", transactional_id="t").flag("enable.idempotence")
    relaxed = checked(enable_idempotence=False, max_in_flight_requests_per_connection=9)
    assert not relaxed.flag("enable.idempotence")


def test_the_delivery_timeout_grows_with_linger_and_request_timeout_unless_given() -> None:
    assert checked().integer("delivery.timeout.ms") == 120_000
    assert checked(request_timeout_ms=200_000).integer("delivery.timeout.ms") == 200_005
    exact = checked(request_timeout_ms=1000, linger_ms=0, delivery_timeout_ms=1000)
    assert exact.seconds("delivery.timeout.ms") == 1.0


def test_the_reconnect_back_off_is_constant_if_only_its_beginning_was_given() -> None:
    assert options().seconds("reconnect.backoff.max.ms") == 1.0
    assert options(reconnect_backoff_ms=5000).seconds("reconnect.backoff.max.ms") == 5.0
    both = options(reconnect_backoff_ms=10, reconnect_backoff_max_ms=20)
    assert both.seconds("reconnect.backoff.max.ms") == 0.02


def test_a_partitioner_object_is_passed_through() -> None:
    def by_value(*_: object) -> int:
        return 0

    for spelling in ("partitioner_class", "partitioner.class"):
        checked, custom, _ = producer_options(SERVER, {spelling: by_value})
        assert custom is by_value
        assert checked["partitioner.class"] is None
    checked, custom, _ = producer_options(SERVER, {"partitioner.class": "round_robin"})
    assert (checked["partitioner.class"], custom) == ("round_robin", None)


def test_bootstrap_servers_come_as_argument_or_as_option() -> None:
    assert producer_options(["a:1", "b:2"], {})[0].bootstrap[1].host == "b"
    assert producer_options(None, {"bootstrap_servers": "a:1"})[0].bootstrap[0].port == 1
    with pytest.raises(UsageError, match=r"bootstrap\.servers is given twice"):
        producer_options("a:1", {"bootstrap_servers": "a:1"})
    with pytest.raises(UsageError, match=r"bootstrap\.servers is missing"):
        producer_options(None, {})


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"acks": 1}, "acks", "1"),
        ({"acks": 0}, "acks", "0"),
        ({"acks": -1}, "acks", "-1"),
        ({"acks": None}, "acks", "all"),
        ({"compression_type": None}, "compression.type", "none"),
        ({"linger_ms": None, "linger.ms": 7}, "linger.ms", 7),
        ({"linger_ms": "7"}, "linger.ms", 7),
        ({"enable_idempotence": "false"}, "enable.idempotence", False),
        ({"enable_idempotence": " FALSE "}, "enable.idempotence", False),
        ({"security_protocol": "plaintext"}, "security.protocol", "PLAINTEXT"),
        ({"metadata_recovery_strategy": "None"}, "metadata.recovery.strategy", "none"),
        (
            {"ssl_endpoint_identification_algorithm": "HTTPS"},
            "ssl.endpoint.identification.algorithm",
            "https",
        ),
    ],
)
def test_values_as_people_write_them(given: dict[str, object], name: str, value: object) -> None:
    assert checked(**given)[name] == value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"acks": 2}, r"acks=2: must be one of 0, 1, -1, all"),
        ({"acks": True}, r"acks=True: must be a string"),
        ({"acks": "ALL"}, "one of"),  # as in Kafka, whose producer wants this as it is written
        ({"compression_type": "GZIP"}, "one of none, gzip"),
        ({"client_id": 5}, r"client\.id=5: must be a string"),
        ({"client_id": "\ud800"}, "must be a string"),
        ({"client_id": "x" * 32_768}, "has 32768 bytes; at most 32767"),
        ({"transactional_id": "ä" * 16_384}, "has 32768 bytes; at most 32767"),
        ({"linger_ms": True}, "whole number"),
        ({"linger_ms": 5.0}, "whole number"),
        ({5: 5}, "the name of an option is a str"),
    ],
)
def test_meaningless_values_are_refused(given: dict[Any, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        producer_options({"bootstrap.servers": SERVER, **given}, {})


@pytest.mark.parametrize(
    ("table", "given"),
    [
        (PRODUCER, {"metric.reporters": ""}),
        (PRODUCER, {"interceptor.classes": []}),
        (PRODUCER, {"interceptor_classes": None}),
        (PRODUCER, {"enable.metrics.push": False}),
        (PRODUCER, {"enable_metrics_push": "False"}),
        (PRODUCER, {"sasl.login.refresh.window.factor": 0.8}),
        (PRODUCER, {"ssl.protocol": "TLSv1.3"}),
        (PRODUCER, {"value_serializer": None}),
        (
            PRODUCER,
            {"key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer"},
        ),
        (CONSUMER, {"allow_auto_create_topics": False}),
        (ADMIN, {"retries": INT_MAX}),
    ],
)
def test_a_refused_option_that_asks_for_nothing_is_taken(
    table: OptionTable, given: dict[str, object]
) -> None:
    assert options(table, **given).given == {"bootstrap.servers"}


@pytest.mark.parametrize(
    ("table", "given", "why"),
    [
        (PRODUCER, {"interceptor.classes": ["a.B"]}, "wrap send"),
        (PRODUCER, {"enable.metrics.push": True}, "KIP-714"),
        (PRODUCER, {"value_serializer": str.encode}, "bytes"),
        (CONSUMER, {"allow.auto.create.topics": True}, "Admin"),
        (ADMIN, {"retries": 3}, r"default\.api\.timeout\.ms"),
        (PRODUCER, {"unheard_of": None}, "unknown producer option"),
    ],
)
def test_a_refused_option_that_asks_for_something_is_refused(
    table: OptionTable, given: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        options(table, **given)


@pytest.mark.parametrize(
    ("foreign", "here"),
    [
        ("ssl.ca.location", "ssl.truststore.location, a PEM file"),
        ("metadata.broker.list", "bootstrap.servers"),
        ("queue.buffering.max.ms", "linger.ms"),
        ("message.timeout.ms", "delivery.timeout.ms"),
        ("request.required.acks", "acks"),
        ("compression.codec", "compression.type"),
        ("api_version", "agreed on with each broker"),
        ("ssl_cafile", "ssl.truststore.location"),
        ("sasl_plain_username", "sasl.username"),
        ("max_batch_size", "batch.size"),
        ("error_cb", "logging"),
    ],
)
@pytest.mark.parametrize("table", [PRODUCER, CONSUMER, ADMIN], ids=lambda table: table.kind)
def test_options_of_other_clients_are_translated(
    table: OptionTable, foreign: str, here: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        options(table, **{foreign: "x"})
    assert str(refusal.value).startswith(f"unknown {table.kind} option {foreign!r}: ")
    assert here in str(refusal.value)


def test_no_foreign_name_is_one_that_is_taken_or_refused_here() -> None:
    named = set(KAFKA_PRODUCER) | set(KAFKA_PRODUCER_REFUSED.split()) | set(NO_OPS)
    assert named.isdisjoint(FOREIGN)
    every = {option.name for table in (PRODUCER, CONSUMER, ADMIN) for option in table}
    assert every.isdisjoint(FOREIGN)
    for hint in FOREIGN.values():
        for name in re.findall(r"here it is ([\w.]+)", hint):
            assert name in every


def test_options_come_as_a_dictionary_too() -> None:
    given = {"bootstrap.servers": "a:1", "linger.ms": 7, "partitioner_class": len}
    made, custom, _ = producer_options(given, {"acks": 1})
    assert (made.bootstrap[0].host, made["linger.ms"], made["acks"]) == ("a", 7, "1")
    assert custom is len
    for twice in ("linger.ms", "linger_ms"):
        with pytest.raises(UsageError, match=r"linger.ms is given twice"):
            producer_options(given, {twice: 7})
    assert gather_options("admin", {"client.id": "me"}, {"retries": 1}) == {
        "client.id": "me",
        "retries": 1,
    }


@pytest.mark.parametrize("given", [9092, b"a:1", [b"a:1"], [("a", 1)], 1.5, object()])
def test_servers_that_are_no_text_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers=.*: give host:port as text"):
        producer_options(given, {})


# --- connections and security --------------------------------------------------------------------


def test_all_clients_have_the_options_of_connections() -> None:
    names = {option.name for option in connection_options(receive_buffer=-1, max_idle_ms=-1)}
    assert {"bootstrap.servers", "security.protocol"} <= names
    for table in (PRODUCER, CONSUMER, ADMIN):
        assert names <= {option.name for option in table}


def test_connection_options() -> None:
    made = options(
        client_id="me",
        connections_max_idle_ms=-1,
        metadata_recovery_strategy="none",
        client_dns_lookup="resolve_canonical_bootstrap_servers_only",
        socket_connection_setup_timeout_max_ms=7000,
    ).connection_options()
    assert (made.client_id, made.max_idle, made.rebootstrap_after) == ("me", None, None)
    assert made.canonical_bootstrap
    assert made.connect_timeout_max == 7.0
    assert made.tls is None
    assert made.credentials is None
    default = options(ADMIN).connection_options()
    assert (default.client_id, default.max_idle) == ("trimtab-admin", 300.0)
    assert default.rebootstrap_after == 300.0
    assert not default.canonical_bootstrap


JAAS = "org.apache.kafka.common.security"


@pytest.mark.parametrize("table", [PRODUCER, CONSUMER, ADMIN], ids=lambda table: table.kind)
def test_sasl_credentials(table: OptionTable) -> None:
    def credentials(**given: object) -> Any:
        return options(table, **given).connection_options().credentials

    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": "p"}
    assert credentials(sasl_mechanism="PLAIN", **sasl) == Plain("u", Password("p"))
    scram = credentials(sasl_mechanism="SCRAM-SHA-512", **sasl)
    assert isinstance(scram, Scram)
    assert scram[:3] == ("SCRAM-SHA-512", "u", Password("p"))
    assert scram.make_nonce() != scram.make_nonce()
    token = credentials(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token=lambda: "token",
    )
    assert isinstance(token, OAuthBearer)


@pytest.mark.parametrize(
    ("mechanism", "text", "expected"),
    [
        ("PLAIN", f'{JAAS}.plain.PlainLoginModule required username="u" password="p";', ("u", "p")),
        ("PLAIN", f"{JAAS}.plain.PlainLoginModule required username=u password=p;", ("u", "p")),
        (
            "SCRAM-SHA-256",
            f'\n{JAAS}.scram.ScramLoginModule required\n username="a b"\n password="q\\"\\\\;=";\n',
            ("a b", 'q"\\;='),
        ),
        (
            "PLAIN",
            f'{JAAS}.plain.PlainLoginModule  requisite password = "p" username = "u" ;',
            ("u", "p"),
        ),
    ],
)
def test_jaas(mechanism: str, text: str, expected: tuple[str, str]) -> None:
    username, password = parse_jaas_config(Password(text), mechanism)
    assert (username, password.text) == expected


@pytest.mark.parametrize(
    ("mechanism", "text", "why"),
    [
        ("PLAIN", "username=u password=hidden1", "cannot be read"),
        ("PLAIN", f"{JAAS}.plain.PlainLoginModule required username=u password=hidden1", "read"),
        (
            "PLAIN",
            f"{JAAS}.scram.ScramLoginModule required username=u password=hidden1;",
            "needs PlainLoginModule",
        ),
        ("SCRAM-SHA-256", f"{JAAS}.scram.ScramLoginModule required username=u;", "one is missing"),
        (
            "SCRAM-SHA-256",
            f"{JAAS}.scram.ScramLoginModule required username=u password=hidden1 tokenauth=true;",
            "tokenauth is not for trimtab",
        ),
    ],
)
def test_jaas_that_will_not_do(mechanism: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_jaas_config(Password(text), mechanism)
    assert "hidden1" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"security_protocol": "SASL_SSL"}, r"sasl\.mechanism is missing"),
        ({"sasl_mechanism": "PLAIN"}, r"security\.protocol=PLAINTEXT does not authenticate"),
        ({"sasl_password": "s3", "security_protocol": "SSL"}, r"SSL does not authenticate"),
        ({"sasl_oauthbearer_token_endpoint_url": "s3"}, r"PLAINTEXT does not authenticate"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_oauthbearer_client_credentials_client_secret": "s3",
            },
            r"client\.secret is for sasl\.mechanism=OAUTHBEARER",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"},
            r"AWS_MSK_IAM is not built.*OAUTHBEARER.*aws-msk-iam-sasl-signer-python",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"},
            r"sasl\.username is missing",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u"},
            r"sasl\.password is missing",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            r"sasl\.oauthbearer\.token\.endpoint\.url is missing.*or sasl\.oauthbearer\.token, a ",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "u",
                "sasl_password": "s3",
                "sasl_jaas_config": "s3",
            },
            "both given",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_location": "/no/such.pem"},
            r"ssl\.truststore\.location=/no/such\.pem cannot be read",
        ),
    ],
)
def test_refusals_of_security(given: dict[str, object], why: str) -> None:
    for table in (PRODUCER, CONSUMER, ADMIN):
        with pytest.raises(UsageError, match=why) as caught:
            options(table, **given)
        assert "s3" not in str(caught.value)


def test_certificates_are_not_read_without_tls(tmp_path: Path) -> None:
    assert options(ssl_truststore_location=str(tmp_path / "none")).connection_options().tls is None


def test_no_secret_is_shown() -> None:
    made = options(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="s3cret",
    )
    assert "s3cret" not in repr(made.connection_options()) + repr(made["sasl.password"])
    assert f"{made['sasl.password']}" == "[hidden]"
    with pytest.raises(UsageError, match=r"sasl\.password=\[hidden\]: must be a string"):
        options(sasl_password=b"s3cret")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"group_instance_id": "i"}, "needs a group.id"),
        ({"group_remote_assignor": "uniform"}, "needs a group.id"),
        ({"group_id": ""}, "must not be empty"),
        ({"group_id": "g", "group_instance_id": ""}, "must not be empty"),
        ({"group_id": "g", "group_protocol": "consumer", "session_timeout_ms": 9}, "coordinator"),
        ({"group_id": "g", "group_remote_assignor": "uniform"}, "group.protocol=consumer"),
        ({"group_id": "g", "heartbeat_interval_ms": 9, "session_timeout_ms": 9}, "less than"),
        ({"group_id": "g", "group_protocol": "streams"}, "classic"),
        ({"group_id": "g", "enable_auto_commit": 7}, "enable.auto.commit"),
    ],
    ids=str,
)
def test_options_of_groups_that_contradict_each_other(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        consumer_options("127.0.0.1:9092", given)
