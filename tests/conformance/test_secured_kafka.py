"""trimtab's clients on a real Apache Kafka with TLS and SASL.

Skipped without Java, Apache Kafka's jars or the `openssl` command.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from lab.benchmarks.jars import find_kafka_jars
from lab.processes import free_ports
from tests.token_endpoint import token_endpoint
from trimtab import Admin, Consumer, Producer
from trimtab.kafka.errors import AuthenticationFailed, KafkaError, UsageError

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("openssl") is None or find_kafka_jars() is None,
    reason="needs java, openssl and Apache Kafka's jars: TRIMTAB_KAFKA_JARS, or"
    " python -m lab.benchmarks.jars",
)

PASSWORDS = {"alice": "alice's secret", "bob": "bob,s=secret"}
REAUTHENTICATE_MS = 2000


class Certificates:
    """Two certificate authorities, and certificates of the first for the broker and the client.

    The broker's certificate is for 127.0.0.1, not for localhost.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = self._make_authority("authority")
        self.stranger = self._make_authority("stranger")
        self.broker = self._issue("broker", "subjectAltName=IP:127.0.0.1")
        self.client = self._issue("client", "extendedKeyUsage=clientAuth")
        self.encrypted_key = directory / "encrypted.pem"
        self._run(
            *("pkcs8", "-topk8", "-in", str(directory / "client.key"), "-passout", "pass:sesame"),
            *("-out", str(self.encrypted_key)),
        )

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def _make_authority(self, name: str) -> Path:
        path = self.directory / f"{name}.pem"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(self.directory / f"{name}.key"), "-out", str(path)),
            *("-subj", f"/CN={name}", "-days", "2"),
        )
        return path

    def _issue(self, name: str, extension: str) -> Path:
        """A PEM file with a new key and its certificate."""
        key, request = self.directory / f"{name}.key", self.directory / f"{name}.csr"
        certificate, extensions = self.directory / f"{name}.crt", self.directory / f"{name}.ext"
        extensions.write_text(extension)
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}"),
        )
        self._run(
            *("x509", "-req", "-in", str(request), "-CA", str(self.authority), "-CAcreateserial"),
            *("-CAkey", str(self.directory / "authority.key"), "-days", "2"),
            *("-extfile", str(extensions), "-out", str(certificate)),
        )
        both = self.directory / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return both


class SecuredKafka(ApacheKafka):
    """Apache Kafka with listeners for plaintext, client certificates, SASL, and OAuth tokens."""

    name = "Apache Kafka, secured"

    def prepare(self) -> None:
        self.certificates = certificates = Certificates(self.directory)
        tls, secure, oauth, controller = free_ports(4)
        self.tls, self.secure, self.oauth = (f"127.0.0.1:{port}" for port in (tls, secure, oauth))
        login = "org.apache.kafka.common.security"
        listeners = (
            f"OPEN://{self.address},TLS://{self.tls},SECURE://{self.secure},OAUTH://{self.oauth}"
        )
        settings = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "OPEN",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OPEN:PLAINTEXT,TLS:SSL,"
            "SECURE:SASL_SSL,OAUTH:SASL_PLAINTEXT",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": (
                f'{login}.plain.PlainLoginModule required user_alice="{PASSWORDS["alice"]}";'
            ),
            "listener.name.secure.scram-sha-256.sasl.jaas.config": (
                f"{login}.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.scram-sha-512.sasl.jaas.config": (
                f"{login}.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.scram-sha-256.connections.max.reauth.ms": str(REAUTHENTICATE_MS),
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": (
                f"{login}.oauthbearer.OAuthBearerLoginModule required"
                ' unsecuredLoginStringClaim_sub="broker";'
            ),
        }
        self._properties = self.directory / "server.properties"
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        scram = [
            f"{mechanism}=[name={user},password={password}]"
            for mechanism, user, password in (
                ("SCRAM-SHA-256", "carol", "carols-secret"),
                ("SCRAM-SHA-512", "carol", "carols-secret"),
            )
        ]
        run_java(
            "kafka.tools.StorageTool",
            *("format", "-t", "trimtab-secured-00000", "-c", str(self._properties)),
            *(word for each in scram for word in ("--add-scram", each)),
            heap="256m",
        )


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with SecuredKafka() as kafka:
        yield kafka


def travels(bootstrap: str, topic: str, **options: Any) -> None:
    """Create a topic, send records to it, and read them."""
    with Admin(bootstrap, **options) as admin:
        admin.create_topic(topic, partitions=2)
    with Producer(bootstrap, **options) as producer:
        sent = [producer.send(topic, b"%d" % n, partition=n % 2) for n in range(100)]
        producer.flush(20)
        assert {delivery.result().partition for delivery in sent} == {0, 1}
    with Consumer(bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        received: list[int] = []
        while len(received) < 100:
            records = consumer.poll(10_000)
            assert records
            received += [int(record.value or b"") for record in records]
    assert sorted(received) == list(range(100))


def refusals(bootstrap: str, **options: Any) -> Iterator[tuple[float, KafkaError]]:
    """The errors of producer, admin and consumer, each with the seconds until it was raised."""
    with Producer(bootstrap, **options) as producer:
        began = time.perf_counter()
        with pytest.raises(KafkaError) as caught:
            producer.send("any", b"value")
        yield time.perf_counter() - began, caught.value
    with Admin(bootstrap, **options) as admin:
        began = time.perf_counter()
        with pytest.raises(KafkaError) as caught:
            admin.topics()
        yield time.perf_counter() - began, caught.value
    with Consumer(bootstrap, **options) as consumer:
        consumer.assign([("any", 0)])
        began = time.perf_counter()
        with pytest.raises(KafkaError) as caught:
            consumer.poll(20_000)
        yield time.perf_counter() - began, caught.value


def is_refused_at_once(bootstrap: str, *fragments: str, **options: Any) -> None:
    """Check that all clients raise `AuthenticationFailed` long before max.block.ms, and that the
    message has the broker and the cause."""
    for seconds, error in refusals(bootstrap, **options):
        assert isinstance(error, AuthenticationFailed), error
        assert seconds < 5
        for fragment in (bootstrap, *fragments):
            assert fragment in str(error)


def tls_options(kafka: SecuredKafka, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(kafka.certificates.authority),
        "ssl_keystore_location": str(kafka.certificates.client),
        **more,
    }


def sasl_options(kafka: SecuredKafka, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "ssl_truststore_location": str(kafka.certificates.authority),
        **more,
    }


def test_tls_with_a_client_certificate(kafka: SecuredKafka) -> None:
    travels(kafka.tls, "tls", **tls_options(kafka))


@pytest.mark.kip(651)
def test_tls_with_certificates_and_an_encrypted_key_as_text(kafka: SecuredKafka) -> None:
    certificates = kafka.certificates
    travels(
        kafka.tls,
        "tls-text",
        security_protocol="SSL",
        ssl_truststore_certificates=certificates.authority.read_text(),
        ssl_keystore_key=certificates.encrypted_key.read_text(),
        ssl_keystore_certificate_chain=(certificates.directory / "client.crt").read_text(),
        ssl_key_password="sesame",
        ssl_enabled_protocols="TLSv1.2",
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    )


def test_a_key_whose_password_is_wrong_or_missing(kafka: SecuredKafka) -> None:
    text = {
        "security_protocol": "SSL",
        "ssl_keystore_key": kafka.certificates.encrypted_key.read_text(),
        "ssl_keystore_certificate_chain": (kafka.certificates.directory / "client.crt").read_text(),
    }
    with pytest.raises(UsageError, match=r"key is encrypted; give ssl\.key\.password"):
        Producer({"bootstrap.servers": kafka.tls, **text})
    with pytest.raises(UsageError, match=r"ssl\.key\.password is wrong"):
        Producer({"bootstrap.servers": kafka.tls, **text}, ssl_key_password="open")


def test_a_client_without_the_certificate_that_is_asked_for(kafka: SecuredKafka) -> None:
    for protocol in ("TLSv1.2", "TLSv1.3"):
        options = tls_options(kafka, ssl_keystore_location=None, ssl_enabled_protocols=protocol)
        is_refused_at_once(kafka.tls, "certificate", **options)


def test_a_broker_of_an_unknown_authority(kafka: SecuredKafka) -> None:
    is_refused_at_once(
        kafka.secure,
        "unable to get local issuer certificate",
        "ssl.truststore.location",
        **sasl_options(
            kafka,
            ssl_truststore_location=str(kafka.certificates.stranger),
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password=PASSWORDS["alice"],
        ),
    )


def test_a_broker_of_another_name(kafka: SecuredKafka) -> None:
    by_name = kafka.tls.replace("127.0.0.1", "localhost")
    is_refused_at_once(
        by_name,
        "not valid for 'localhost'",
        "ssl.endpoint.identification.algorithm",
        **tls_options(kafka),
    )
    anyone = tls_options(kafka, ssl_endpoint_identification_algorithm="")
    travels(by_name, "any-name", **anyone)


def test_plain(kafka: SecuredKafka) -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="alice" password="{PASSWORDS["alice"]}";'
    )
    travels(
        kafka.secure, "plain", **sasl_options(kafka, sasl_mechanism="PLAIN", sasl_jaas_config=jaas)
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(kafka: SecuredKafka, mechanism: str) -> None:
    options = sasl_options(
        kafka,
        sasl_mechanism=mechanism,
        sasl_username="carol",
        sasl_password="carols-secret",
    )
    travels(kafka.secure, mechanism.lower(), **options)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password(kafka: SecuredKafka, mechanism: str) -> None:
    is_refused_at_once(
        kafka.secure,
        mechanism,
        "SASL_AUTHENTICATION_FAILED",
        **sasl_options(
            kafka, sasl_mechanism=mechanism, sasl_username="carol", sasl_password="guess"
        ),
    )


def test_a_mechanism_that_the_listener_does_not_have(kafka: SecuredKafka) -> None:
    is_refused_at_once(
        kafka.oauth,
        "does not do sasl.mechanism=PLAIN",
        "it does OAUTHBEARER",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password=PASSWORDS["alice"],
    )


@pytest.mark.kip(368)
def test_a_session_is_renewed_over_the_same_connection(kafka: SecuredKafka) -> None:
    """Without renewal Kafka closes the connection at the first request after the session ended."""
    options = sasl_options(
        kafka,
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="carol",
        sasl_password="carols-secret",
    )
    with Admin(kafka.secure, **options) as admin:
        admin.create_topic("renewed", partitions=1)
    with Producer(kafka.secure, retries=0, acks="1", linger_ms=0, **options) as producer:
        producer.send("renewed", b"first").result(10)
        connections = producer._core.connections
        opened = {id(connection) for connection in connections.connections}
        until = time.perf_counter() + 2.5 * REAUTHENTICATE_MS / 1000
        sent = 0
        while time.perf_counter() < until:
            producer.send("renewed", b"next").result(10)
            sent += 1
        assert sent > 100
        assert {id(connection) for connection in connections.connections} == opened


def unsecured_token(lifetime: float) -> str:
    """An unsigned token, which Kafka's development mode accepts."""

    def encode(part: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()

    now = int(time.time())
    claims = {"sub": "alice", "iat": now, "exp": now + int(lifetime)}
    return f"{encode({'alg': 'none'})}.{encode(claims)}."


@pytest.mark.kip(255)
def test_oauthbearer(kafka: SecuredKafka) -> None:
    asked = 0

    def fetch_token() -> tuple[str, float]:
        nonlocal asked
        asked += 1
        return unsecured_token(60), 60

    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token": fetch_token,
    }
    travels(kafka.oauth, "oauth", **options)
    assert asked == 3  # once for each client, for any number of connections


JAVAS = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{JAVAS}.OAuthBearerLoginModule required"


@pytest.mark.kip(255)
def test_oauthbearer_by_an_unsecured_token(kafka: SecuredKafka) -> None:
    travels(
        kafka.oauth,
        "oauth-unsecured",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{MODULE} unsecuredLoginStringClaim_sub="alice";',
    )


@pytest.mark.kip(768)
def test_oauthbearer_by_a_token_endpoint(kafka: SecuredKafka) -> None:
    with token_endpoint(lambda before: (200, {"access_token": unsecured_token(60)})) as endpoint:
        travels(
            kafka.oauth,
            "oauth-endpoint",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_login_callback_handler_class=f"{JAVAS}.secured.OAuthBearerLoginCallbackHandler",
            sasl_oauthbearer_token_endpoint_url=endpoint.url,
            sasl_jaas_config=f'{MODULE} clientId="id" clientSecret="secret" scope="kafka";',
        )
    assert len(endpoint.asked) == 3  # once for each client, for any number of connections


@pytest.mark.kip(768)
def test_a_token_endpoint_that_refuses(kafka: SecuredKafka) -> None:
    with token_endpoint(lambda before: (401, {"error": "invalid_client"})) as endpoint:
        for _, error in refusals(
            kafka.oauth,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=endpoint.url,
            sasl_oauthbearer_client_credentials_client_id="id",
            sasl_oauthbearer_client_credentials_client_secret="guess",
        ):
            assert isinstance(error, AuthenticationFailed)
            assert f"{endpoint.url} answers with status 401: invalid_client" in str(error)


def test_a_token_that_is_out_of_date(kafka: SecuredKafka) -> None:
    is_refused_at_once(
        kafka.oauth,
        "OAUTHBEARER",
        "the token was refused (invalid_token)",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token=lambda: unsecured_token(-600),
    )


@pytest.mark.parametrize(
    ("listener", "protocol"), [("tls", "PLAINTEXT"), ("address", "SSL"), ("oauth", "PLAINTEXT")]
)
def test_a_listener_that_speaks_something_else(
    kafka: SecuredKafka, listener: str, protocol: str
) -> None:
    place = getattr(kafka, listener)
    with (
        Producer(
            {"bootstrap.servers": place, "security.protocol": protocol}, max_block_ms=500
        ) as producer,
        pytest.raises(KafkaError, match=f"security.protocol={protocol}") as caught,
    ):
        producer.send("any", b"value")
    assert place in str(caught.value)
