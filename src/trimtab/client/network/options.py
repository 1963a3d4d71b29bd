"""The checked options of one client, and what its connections are made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Literal, cast

from trimtab.client.arguments import checked_text
from trimtab.client.network.authentication import (
    Credentials,
    OAuthBearer,
    Plain,
    Scram,
    TokenSource,
)
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.bootstrap import parse_bootstrap_servers
from trimtab.client.network.connection import ConnectionOptions, Node
from trimtab.config import OptionTable, Password, Value, read_given
from trimtab.errors import UsageError
from trimtab.system.network import TlsSettings, make_nonce, make_tls_context, set_buffer_sizes


class Options:
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
        set_by_user = read_given(
            table,
            {name: value for name, value in given.items() if not table.asks_nothing(name, value)},
        )
        self.given = frozenset(set_by_user)
        """The dotted names of the options that the user set."""
        self._values: dict[str, Value] = {option.name: option.default for option in table}
        self._values.update(set_by_user)
        for name in ("client.id", "client.rack", "transactional.id"):  # part of requests
            if self._values.get(name) is not None:
                checked_text(f"{table.kind} option {name}", self._values[name])
        servers = cast(tuple[str, ...], self._values["bootstrap.servers"])
        if not servers:
            raise UsageError(
                f"{table.kind} option bootstrap.servers is missing; name at least one broker,"
                " such as 127.0.0.1:9092"
            )
        self.bootstrap: list[Node] = parse_bootstrap_servers(servers)
        if "reconnect.backoff.ms" in self.given and "reconnect.backoff.max.ms" not in self.given:
            # As in Kafka: the back-off is then constant.
            self.adjust("reconnect.backoff.max.ms", self["reconnect.backoff.ms"])
        self._connection_options = make_connection_options(self)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def adjust(self, name: str, value: Value) -> None:
        """Replace a default that contradicts the user's options."""
        self._values[name] = value

    def integer(self, name: str) -> int:
        return cast(int, self._values[name])

    def number(self, name: str) -> float:
        return cast(float, self._values[name])

    def seconds(self, name: str) -> float:
        """An option in milliseconds, as seconds."""
        return cast(int, self._values[name]) / 1000

    def backoff(self, of: Literal["retry", "reconnect"] = "retry") -> Backoff:
        """The options `retry.backoff.ms` and `retry.backoff.max.ms`, or those of `reconnect`."""
        return Backoff(self.seconds(f"{of}.backoff.ms"), self.seconds(f"{of}.backoff.max.ms"))

    def text(self, name: str) -> str:
        return cast(str, self._values[name])

    def flag(self, name: str) -> bool:
        return cast(bool, self._values[name])

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
        value = cast(Password | None, options[name])
        return None if value is None else value.text

    return TlsSettings(
        truststore_location=options.text("ssl.truststore.location") or "",
        truststore_certificates=secret("ssl.truststore.certificates") or "",
        keystore_location=options.text("ssl.keystore.location") or "",
        keystore_key=secret("ssl.keystore.key") or "",
        keystore_certificate_chain=secret("ssl.keystore.certificate.chain") or "",
        key_password=secret("ssl.key.password"),
        checks_host_name=options.text("ssl.endpoint.identification.algorithm") == "https",
        protocols=cast(tuple[str, ...], options["ssl.enabled.protocols"]),
        cipher_suites=cast(tuple[str, ...], options["ssl.cipher.suites"]),
    )


def _credentials(options: Options, protocol: str) -> Credentials | None:
    mechanism = cast(str | None, options["sasl.mechanism"])
    if not protocol.startswith("SASL"):
        for name in ("sasl.mechanism", "sasl.jaas.config", "sasl.username", "sasl.password"):
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
        source = cast(TokenSource | None, options["sasl.oauthbearer.token"])
        if source is None:
            raise UsageError(
                f"{options.kind} option sasl.oauthbearer.token is missing: sasl.mechanism="
                "OAUTHBEARER needs a callable that returns a token, or (token, lifetime in seconds)"
            )
        return OAuthBearer(source)
    username, password = _user_and_password(options, mechanism)
    if mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(mechanism, username, password, make_nonce)


def _user_and_password(options: Options, mechanism: str) -> tuple[str, Password]:
    jaas = cast(Password | None, options["sasl.jaas.config"])
    username = cast(str | None, options["sasl.username"])
    password = cast(Password | None, options["sasl.password"])
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


_JAAS = re.compile(
    r"""\s* (?P<module>[\w.$]+) \s+ (?:required|requisite|sufficient|optional)
        (?P<options> (?: \s+ [\w.]+ \s*=\s* (?: "(?:[^"\\]|\\.)*" | [^\s";]+ ) )* ) \s* ; \s*""",
    re.VERBOSE,
)
_JAAS_OPTION = re.compile(
    r"""([\w.]+) \s*=\s* (?: "((?:[^"\\]|\\.)*)" | ([^\s";]+) )""", re.VERBOSE
)


def parse_jaas_config(config: Password, mechanism: str) -> tuple[str, Password]:
    """User and password of a `sasl.jaas.config` as Java's clients take it.

    Raises:
        UsageError: it is not of that form, is for another mechanism, or lacks one of them.
    """
    module_name = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    expected = (
        f"org.apache.kafka.common.security.{'plain' if mechanism == 'PLAIN' else 'scram'}"
        f'.{module_name} required username="…" password="…";'
    )
    found = _JAAS.fullmatch(config.text)
    if found is None:
        raise UsageError(f"sasl.jaas.config=[hidden] cannot be read; expected: {expected}")
    if found["module"].rpartition(".")[2] != module_name:
        raise UsageError(
            f"sasl.jaas.config names {found['module']}, but sasl.mechanism={mechanism} needs"
            f" {module_name}; expected: {expected}"
        )
    given: dict[str, str] = {}
    for name, quoted, bare in _JAAS_OPTION.findall(found["options"]):
        given[name] = re.sub(r"\\(.)", r"\1", quoted) or bare
    unknown = given.keys() - {"username", "password", "serviceName"}
    if unknown or "username" not in given or "password" not in given:
        wrong = f"{', '.join(sorted(unknown))} is not for trimtab" if unknown else "one is missing"
        raise UsageError(f"sasl.jaas.config needs username and password ({wrong}): {expected}")
    return given["username"], Password(given["password"])
