"""The options of connections and their security, which producer, consumer and admin share.

`make_connection_options` turns the checked values into the `ConnectionOptions` of `Connections`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, cast

from trimtab.client.network.authentication import (
    SCRAM_HASHES,
    Credentials,
    OAuthBearer,
    Plain,
    Scram,
    TokenSource,
)
from trimtab.client.network.connection import ConnectionOptions
from trimtab.config import (
    CLASS,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    Option,
    Password,
    Range,
)
from trimtab.errors import UsageError
from trimtab.runtime.network import TlsSettings, make_nonce, make_tls_context, set_buffer_sizes

if TYPE_CHECKING:
    from trimtab.client.options import Options

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BUFFER = Range(0, also=(-1,))


def connection_options(receive_buffer: int, max_idle_ms: int) -> tuple[Option, ...]:
    """The options of one kind of client; the arguments are the defaults in which kinds differ."""
    return (
        Option(
            "bootstrap.servers",
            LIST,
            (),
            "Where to reach the cluster first: host:port, host:port, …",
        ),
        Option(
            "client.dns.lookup",
            STRING,
            "use_all_dns_ips",
            "Try every address of a name in turn; or besides replace each bootstrap name by the"
            " canonical names of its addresses first, as Kerberos and some certificates need.",
            ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
            kip="KIP-302",
        ),
        Option("client.id", STRING, "", "A name for this client in the brokers' logs and metrics."),
        Option(
            "client.rack", STRING, "", "The rack (availability zone) of this client.", kip="KIP-392"
        ),
        Option(
            "connections.max.idle.ms",
            LONG,
            max_idle_ms,
            "Close a connection that was not used for this long; -1 never.",
            Range(-1),
            "ms",
        ),
        Option(
            "metadata.max.age.ms",
            LONG,
            300_000,
            "Refresh the cluster's metadata this often.",
            Range(0),
            "ms",
        ),
        Option(
            "metadata.recovery.rebootstrap.trigger.ms",
            LONG,
            300_000,
            "Forget the known brokers and ask bootstrap.servers again if none of them has sent"
            " metadata for this long.",
            Range(0),
            "ms",
            "KIP-1102",
        ),
        Option(
            "metadata.recovery.strategy",
            STRING,
            "rebootstrap",
            "Whether bootstrap.servers are tried again when no known broker answers.",
            ("rebootstrap", "none"),
            kip="KIP-899",
            ignores_case=True,
        ),
        Option(
            "receive.buffer.bytes",
            INT,
            receive_buffer,
            "The size of the socket's receive buffer (SO_RCVBUF); -1: the system's default.",
            _BUFFER,
            "bytes",
        ),
        Option(
            "reconnect.backoff.ms",
            LONG,
            50,
            "Wait this long before connecting again.",
            Range(0),
            "ms",
        ),
        Option(
            "reconnect.backoff.max.ms",
            LONG,
            1000,
            "That wait doubles with each failure up to this.",
            Range(0),
            "ms",
            "KIP-144",
        ),
        Option(
            "request.timeout.ms", INT, 30_000, "How long to wait for a response.", Range(1), "ms"
        ),
        Option(
            "retry.backoff.ms", LONG, 100, "Wait this long before sending again.", Range(0), "ms"
        ),
        Option(
            "retry.backoff.max.ms",
            LONG,
            1000,
            "That wait doubles with each failure up to this.",
            Range(0),
            "ms",
            "KIP-580",
        ),
        Option(
            "send.buffer.bytes",
            INT,
            131_072,
            "The size of the socket's send buffer (SO_SNDBUF); -1: the system's default.",
            _BUFFER,
            "bytes",
        ),
        Option(
            "socket.connection.setup.timeout.ms",
            LONG,
            10_000,
            "How long opening a connection to one address may take.",
            Range(1),
            "ms",
            "KIP-601",
        ),
        Option(
            "socket.connection.setup.timeout.max.ms",
            LONG,
            30_000,
            "That time doubles with each failure up to this.",
            Range(1),
            "ms",
            "KIP-601",
        ),
        *_SECURITY,
    )


_SECURITY = (
    Option(
        "sasl.jaas.config",
        PASSWORD,
        None,
        "Kafka's form of user and password: …PlainLoginModule or …ScramLoginModule required"
        ' username="…" password="…";',
        kip="KIP-85",
    ),
    Option(
        "sasl.mechanism",
        STRING,
        None,
        "How the client authenticates. Kafka's default, GSSAPI (Kerberos), is not supported.",
        ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER"),
        kip="KIP-43",
    ),
    Option(
        "sasl.oauthbearer.token",
        CLASS,
        None,
        "For OAUTHBEARER: a function that returns a token, or (token, seconds it is valid for)."
        " It is called on a thread of its own unless it is async.",
        kip="KIP-255",
    ),
    Option("sasl.password", PASSWORD, None, "The password, for PLAIN and SCRAM."),
    Option("sasl.username", STRING, None, "The user, for PLAIN and SCRAM."),
    Option(
        "security.protocol",
        STRING,
        "PLAINTEXT",
        "Whether connections are encrypted (SSL: TLS), authenticated (SASL), or both.",
        _PROTOCOLS,
        ignores_case=True,
    ),
    Option(
        "ssl.cipher.suites",
        LIST,
        (),
        "The suites of TLS 1.2 to offer, by their IANA names, and then no TLS 1.3; empty for"
        " OpenSSL's choice.",
    ),
    Option(
        "ssl.enabled.protocols",
        LIST,
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS to offer.",
        ("TLSv1.2", "TLSv1.3"),
    ),
    Option(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "https: a broker's certificate must be for the name it is reached by; empty: for any name.",
        ("https", ""),
        kip="KIP-294",
        ignores_case=True,
    ),
    Option(
        "ssl.key.password",
        PASSWORD,
        None,
        "The password of the key in ssl.keystore.location or ssl.keystore.key.",
    ),
    Option(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "This client's certificates as PEM text, its own first.",
        kip="KIP-651",
    ),
    Option(
        "ssl.keystore.key", PASSWORD, None, "This client's private key as PEM text.", kip="KIP-651"
    ),
    Option(
        "ssl.keystore.location",
        STRING,
        None,
        "A PEM file with this client's private key and certificates.",
    ),
    Option(
        "ssl.keystore.type",
        STRING,
        "PEM",
        "Always PEM; convert a JKS or PKCS12 store with keytool and openssl pkcs12.",
        ("PEM",),
        kip="KIP-651",
    ),
    Option(
        "ssl.truststore.certificates",
        PASSWORD,
        None,
        "The certificates to trust as PEM text.",
        kip="KIP-651",
    ),
    Option(
        "ssl.truststore.location",
        STRING,
        None,
        "A PEM file with the certificates to trust; without one, those of the system.",
    ),
    Option(
        "ssl.truststore.type",
        STRING,
        "PEM",
        "Always PEM; convert a JKS or PKCS12 store with keytool -list -rfc.",
        ("PEM",),
        kip="KIP-651",
    ),
)


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
