"""The options of connections and their security, which producer, consumer and admin share."""

from __future__ import annotations

from trimtab.kafka.options import (
    NOT_NEGATIVE,
    POSITIVE,
    Option,
    Range,
    boolean,
    function,
    int32,
    int64,
    password,
    string,
    strings,
)
from trimtab.kafka.wire.scram import HASHES

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BUFFER = Range(0, also=(-1,))


def connection_options(receive_buffer: int, max_idle_ms: int) -> tuple[Option, ...]:
    """The options of one kind of client; the arguments are the defaults in which kinds differ."""
    return (
        strings(
            "bootstrap.servers",
            (),
            "Where to reach the cluster first: host:port, host:port, …",
        ),
        string(
            "client.dns.lookup",
            "use_all_dns_ips",
            "Try every address of a name in turn; or besides replace each bootstrap name by the"
            " canonical names of its addresses first, as Kerberos and some certificates need.",
            ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
            kip="KIP-302",
        ),
        string("client.id", "", "A name for this client in the brokers' logs and metrics."),
        string("client.rack", "", "The rack (availability zone) of this client.", kip="KIP-392"),
        int64(
            "connections.max.idle.ms",
            max_idle_ms,
            "Close a connection that was not used for this long; -1 never.",
            Range(-1),
        ),
        int64(
            "metadata.max.age.ms",
            300_000,
            "Refresh the cluster's metadata this often.",
            NOT_NEGATIVE,
        ),
        int64(
            "metadata.recovery.rebootstrap.trigger.ms",
            300_000,
            "Forget the known brokers and ask bootstrap.servers again if none of them has sent"
            " metadata for this long.",
            NOT_NEGATIVE,
            kip="KIP-1102",
        ),
        string(
            "metadata.recovery.strategy",
            "rebootstrap",
            "Whether bootstrap.servers are tried again when no known broker answers.",
            ("rebootstrap", "none"),
            kip="KIP-899",
            ignores_case=True,
        ),
        int32(
            "receive.buffer.bytes",
            receive_buffer,
            "The size of the socket's receive buffer (SO_RCVBUF); -1: the system's default.",
            _BUFFER,
        ),
        int64("reconnect.backoff.ms", 50, "Wait this long before connecting again.", NOT_NEGATIVE),
        int64(
            "reconnect.backoff.max.ms",
            1000,
            "That wait doubles with each failure up to this.",
            NOT_NEGATIVE,
            kip="KIP-144",
        ),
        int32("request.timeout.ms", 30_000, "How long to wait for a response.", POSITIVE),
        int64("retry.backoff.ms", 100, "Wait this long before sending again.", NOT_NEGATIVE),
        int64(
            "retry.backoff.max.ms",
            1000,
            "That wait doubles with each failure up to this.",
            NOT_NEGATIVE,
            kip="KIP-580",
        ),
        int32(
            "send.buffer.bytes",
            131_072,
            "The size of the socket's send buffer (SO_SNDBUF); -1: the system's default.",
            _BUFFER,
        ),
        int64(
            "socket.connection.setup.timeout.ms",
            10_000,
            "How long opening a connection to one address may take.",
            POSITIVE,
            kip="KIP-601",
        ),
        int64(
            "socket.connection.setup.timeout.max.ms",
            30_000,
            "That time doubles with each failure up to this.",
            POSITIVE,
            kip="KIP-601",
        ),
        *_SECURITY,
    )


_SECURITY = (
    password(
        "sasl.jaas.config",
        "Kafka's form of user and password: …PlainLoginModule or …ScramLoginModule required"
        ' username="…" password="…"; or for OAUTHBEARER …OAuthBearerLoginModule required'
        ' clientId="…" clientSecret="…" scope="…";',
        kip="KIP-85",
    ),
    string(
        "sasl.login.callback.handler.class",
        None,
        "Accepted without effect if it is Java's OAuthBearerLoginCallbackHandler, or the one for"
        " tokens without a signature: the other options say which is meant.",
        kip="KIP-768",
    ),
    int64(
        "sasl.login.connect.timeout.ms",
        10_000,
        "How long connecting to one address of the token endpoint may take.",
        POSITIVE,
        kip="KIP-768",
    ),
    int64(
        "sasl.login.read.timeout.ms",
        10_000,
        "How long the token endpoint's answer may take.",
        POSITIVE,
        kip="KIP-768",
    ),
    int64(
        "sasl.login.retry.backoff.ms",
        100,
        "Wait this long after the token endpoint failed once; doubled with each failure.",
        POSITIVE,
        kip="KIP-768",
    ),
    int64(
        "sasl.login.retry.backoff.max.ms",
        10_000,
        "Ask the token endpoint again for this long, in all.",
        NOT_NEGATIVE,
        kip="KIP-768",
    ),
    string(
        "sasl.mechanism",
        None,
        "How the client authenticates. Kafka's default, GSSAPI (Kerberos), is not supported.",
        ("PLAIN", *HASHES, "OAUTHBEARER"),
        kip="KIP-43",
    ),
    string(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        "The client's name at the token endpoint.",
        kip="KIP-1139",
    ),
    password(
        "sasl.oauthbearer.client.credentials.client.secret",
        "The client's secret at the token endpoint.",
        kip="KIP-1139",
    ),
    boolean(
        "sasl.oauthbearer.header.urlencode",
        False,
        "Whether id and secret are URL-encoded before they are sent, as RFC 6749 says.",
        kip="KIP-1025",
    ),
    string(
        "sasl.oauthbearer.scope",
        None,
        "The scope to ask for at the token endpoint.",
        kip="KIP-1139",
    ),
    function(
        "sasl.oauthbearer.token",
        "For OAUTHBEARER: a function that returns a token, or (token, seconds it is valid for)."
        " It is called on a thread of its own unless it is async.",
        kip="KIP-255",
    ),
    string(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "Where the client's id and secret become a token: https://…; or file:/…, a file with one.",
        kip="KIP-768",
    ),
    password("sasl.password", "The password, for PLAIN and SCRAM."),
    string("sasl.username", None, "The user, for PLAIN and SCRAM."),
    string(
        "security.protocol",
        "PLAINTEXT",
        "Whether connections are encrypted (SSL: TLS), authenticated (SASL), or both.",
        _PROTOCOLS,
        ignores_case=True,
    ),
    strings(
        "ssl.cipher.suites",
        (),
        "The suites of TLS 1.2 to offer, by their IANA names, and then no TLS 1.3; empty for"
        " OpenSSL's choice.",
    ),
    strings(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS to offer.",
        ("TLSv1.2", "TLSv1.3"),
    ),
    string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: a broker's certificate must be for the name it is reached by; empty: for any name.",
        ("https", ""),
        kip="KIP-294",
        ignores_case=True,
    ),
    password(
        "ssl.key.password",
        "The password of the key in ssl.keystore.location or ssl.keystore.key.",
    ),
    password(
        "ssl.keystore.certificate.chain",
        "This client's certificates as PEM text, its own first.",
        kip="KIP-651",
    ),
    password("ssl.keystore.key", "This client's private key as PEM text.", kip="KIP-651"),
    string(
        "ssl.keystore.location",
        None,
        "A PEM file with this client's private key and certificates.",
    ),
    string(
        "ssl.keystore.type",
        "PEM",
        "Always PEM; convert a JKS or PKCS12 store with keytool and openssl pkcs12.",
        ("PEM",),
        kip="KIP-651",
    ),
    password(
        "ssl.truststore.certificates",
        "The certificates to trust as PEM text.",
        kip="KIP-651",
    ),
    string(
        "ssl.truststore.location",
        None,
        "A PEM file with the certificates to trust; without one, those of the system.",
    ),
    string(
        "ssl.truststore.type",
        "PEM",
        "Always PEM; convert a JKS or PKCS12 store with keytool -list -rfc.",
        ("PEM",),
        kip="KIP-651",
    ),
)
