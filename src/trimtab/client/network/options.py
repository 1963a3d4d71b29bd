"""The checked options of one client, and what its connections are made from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from trimtab.client.network.authentication import (
    Credentials,
    OAuthBearer,
    Plain,
    Scram,
)
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.bootstrap import parse_bootstrap_servers
from trimtab.client.network.connection import ConnectionOptions, Node
from trimtab.client.network.jaas import parse_jaas_config
from trimtab.client.network.oauth import MSK, Login, token_source
from trimtab.client.network.tls import TlsSettings, make_tls_context, set_buffer_sizes
from trimtab.kafka.arguments import checked_text
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import Config, OptionTable, Password, read_given
from trimtab.kafka.wire.scram import make_nonce


class Options(Config):
    """The checked options of one client, read by type.

    Args:
        table: `PRODUCER`, `CONSUMER` or `ADMIN`.
        given: what the user set, by dotted or snake-case name; None leaves an option at its
            default.

    Raises:
        UsageError: an unknown name, a wrong type, a value out of range, no bootstrap servers, or
            options of security that contradict each other.
    """

    def __init__(self, table: OptionTable, given: Mapping[str, object]) -> None:
        self.kind = table.kind
        _refuse_missing_mechanism(table.kind, given)
        set_by_user = read_given(
            table,
            {name: value for name, value in given.items() if not table.asks_nothing(name, value)},
        )
        self.given = frozenset(set_by_user)
        """The dotted names of the options that the user set."""
        super().__init__(table.defaults() | set_by_user)
        for name in ("client.id", "client.rack", "transactional.id"):  # part of requests
            if self.get(name) is not None:
                checked_text(f"{table.kind} option {name}", self[name])
        servers = self.words("bootstrap.servers")
        if not servers:
            raise UsageError(
                f"{table.kind} option bootstrap.servers is missing; name at least one broker,"
                " such as 127.0.0.1:9092"
            )
        self.bootstrap: list[Node] = parse_bootstrap_servers(servers)
        if "reconnect.backoff.ms" in self.given and "reconnect.backoff.max.ms" not in self.given:
            # As in Kafka: the back-off is then constant.
            self["reconnect.backoff.max.ms"] = self["reconnect.backoff.ms"]
        self._connection_options = make_connection_options(self)

    def backoff(self, of: Literal["retry", "reconnect"] = "retry") -> Backoff:
        """The options `retry.backoff.ms` and `retry.backoff.max.ms`, or those of `reconnect`."""
        return Backoff(self.seconds(f"{of}.backoff.ms"), self.seconds(f"{of}.backoff.max.ms"))

    def connection_options(self) -> ConnectionOptions:
        return self._connection_options

    def name_of(self, client: object) -> str:
        """The name of a client with these options, for warnings and the log."""
        servers = ",".join(f"{node.host}:{node.port}" for node in self.bootstrap)
        own = f", client_id={self['client.id']!r}" if "client.id" in self.given else ""
        return f"{type(client).__name__}({servers!r}{own})"


def make_connection_options(options: Options) -> ConnectionOptions:
    """The options of all connections of a client. Reads certificates and keys.

    Raises:
        UsageError: options of security that contradict each other, or files that will not do.
    """
    protocol = options.text("security.protocol")
    max_idle = options.integer("connections.max.idle.ms")
    return ConnectionOptions(
        client_id=options.text("client.id") or f"trimtab-{options.kind}",
        request_timeout=options.seconds("request.timeout.ms"),
        connect_timeout=options.seconds("socket.connection.setup.timeout.ms"),
        connect_timeout_max=options.seconds("socket.connection.setup.timeout.max.ms"),
        backoff=options.backoff("reconnect"),
        max_idle=max_idle / 1000 if max_idle >= 0 else None,
        rebootstrap_after=options.seconds("metadata.recovery.rebootstrap.trigger.ms")
        if options.text("metadata.recovery.strategy") == "rebootstrap"
        else None,
        canonical_bootstrap=options.text("client.dns.lookup") != "use_all_dns_ips",
        security_protocol=protocol,
        tls=make_tls_context(_tls_settings(options)) if protocol.endswith("SSL") else None,
        credentials=_credentials(options, protocol),
        prepare=partial(
            set_buffer_sizes,
            send=options.integer("send.buffer.bytes"),
            receive=options.integer("receive.buffer.bytes"),
        ),
    )


def _tls_settings(options: Options) -> TlsSettings:
    def secret(name: str) -> str | None:
        value = options.secret(name)
        return None if value is None else value.text

    return TlsSettings(
        truststore_location=options.text("ssl.truststore.location"),
        truststore_certificates=secret("ssl.truststore.certificates") or "",
        keystore_location=options.text("ssl.keystore.location"),
        keystore_key=secret("ssl.keystore.key") or "",
        keystore_certificate_chain=secret("ssl.keystore.certificate.chain") or "",
        key_password=secret("ssl.key.password"),
        checks_host_name=options.text("ssl.endpoint.identification.algorithm") == "https",
        protocols=options.words("ssl.enabled.protocols"),
        cipher_suites=options.words("ssl.cipher.suites"),
    )


def _credentials(options: Options, protocol: str) -> Credentials | None:
    mechanism = options.optional_text("sasl.mechanism")
    if not protocol.startswith("SASL"):
        for name in ("sasl.mechanism", "sasl.username", "sasl.password", *_OF_LOGIN):
            if options[name] is not None:
                raise UsageError(
                    f"{options.kind} option {name} is given, but security.protocol={protocol} does"
                    " not authenticate; set security.protocol=SASL_SSL, or leave it out"
                )
        return None
    if mechanism is None:
        raise UsageError(
            f"{options.kind} option sasl.mechanism is missing: security.protocol={protocol} needs"
            " one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        )
    if mechanism == "OAUTHBEARER":
        return _oauth(options)
    for name in _OF_LOGIN[1:]:
        if options[name] is not None:
            raise UsageError(
                f"{options.kind} option {name} is for sasl.mechanism=OAUTHBEARER, not {mechanism}:"
                " leave it out"
            )
    username, password = _user_and_password(options, mechanism)
    if mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(mechanism, username, password, make_nonce)


_OF_LOGIN = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)


def _oauth(options: Options) -> OAuthBearer:
    source = options.function("sasl.oauthbearer.token")
    if source is not None:
        for name in _OF_LOGIN:
            if options[name] is not None:
                raise UsageError(
                    f"{options.kind} options sasl.oauthbearer.token and {name} are both given; keep"
                    " one of the two ways to get a token"
                )
        return OAuthBearer(source)

    def text(name: str) -> str:
        return options.text(f"sasl.{name}")

    login = Login(
        options.kind,
        jaas=options.secret("sasl.jaas.config"),
        handler=text("login.callback.handler.class"),
        url=text("oauthbearer.token.endpoint.url"),
        client_id=text("oauthbearer.client.credentials.client.id"),
        client_secret=options.secret("sasl.oauthbearer.client.credentials.client.secret"),
        scope=text("oauthbearer.scope"),
        encodes_header=options.flag("sasl.oauthbearer.header.urlencode"),
        connect_timeout=options.seconds("sasl.login.connect.timeout.ms"),
        read_timeout=options.seconds("sasl.login.read.timeout.ms"),
        backoff=options.seconds("sasl.login.retry.backoff.ms"),
        patience=options.seconds("sasl.login.retry.backoff.max.ms"),
    )
    return OAuthBearer(*token_source(login))


def _refuse_missing_mechanism(kind: str, given: Mapping[str, object]) -> None:
    """Say what a mechanism that many brokers have, and trimtab has not, can be replaced by.

    Raises:
        UsageError: it is given.
    """
    if "AWS_MSK_IAM" in (given.get("sasl.mechanism"), given.get("sasl_mechanism")):
        raise UsageError(f"{kind} option sasl.mechanism='AWS_MSK_IAM': {MSK}")


def _user_and_password(options: Options, mechanism: str) -> tuple[str, Password]:
    jaas = options.secret("sasl.jaas.config")
    username = options.optional_text("sasl.username")
    password = options.secret("sasl.password")
    if jaas is not None:
        if username is not None or password is not None:
            raise UsageError(
                f"{options.kind} options sasl.jaas.config and sasl.username are both given; keep"
                " one of the two ways to name the user"
            )
        return parse_jaas_config(jaas, mechanism)
    if not username or password is None:
        missing = "sasl.password" if username else "sasl.username"
        raise UsageError(
            f"{options.kind} option {missing} is missing: sasl.mechanism={mechanism} needs"
            " sasl.username and sasl.password, or sasl.jaas.config"
        )
    return username, password
