"""The options of connections and their security, which producer, consumer and admin share."""

from __future__ import annotations

from trimtab.client.network.authentication import SCRAM_HASHES
from trimtab.config import CLASS, INT, LIST, LONG, PASSWORD, STRING, Option, OptionType, Range

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BUFFER = Range(0, also=(-1,))


def milliseconds(
    name: str,
    default: int,
    doc: str,
    *,
    at_least: int = 0,
    kip: str = "",
    type: OptionType = LONG,
) -> Option:
    """An option whose value is a time in milliseconds."""
    return Option(name, type, default, doc, Range(at_least), "ms", kip)


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
        milliseconds(
            "connections.max.idle.ms",
            max_idle_ms,
            "Close a connection that was not used for this long; -1 never.",
            at_least=-1,
        ),
        milliseconds("metadata.max.age.ms", 300_000, "Refresh the cluster's metadata this often."),
        milliseconds(
            "metadata.recovery.rebootstrap.trigger.ms",
            300_000,
            "Forget the known brokers and ask bootstrap.servers again if none of them has sent"
            " metadata for this long.",
            kip="KIP-1102",
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
        milliseconds("reconnect.backoff.ms", 50, "Wait this long before connecting again."),
        milliseconds(
            "reconnect.backoff.max.ms",
            1000,
            "That wait doubles with each failure up to this.",
            kip="KIP-144",
        ),
        milliseconds(
            "request.timeout.ms", 30_000, "How long to wait for a response.", at_least=1, type=INT
        ),
        milliseconds("retry.backoff.ms", 100, "Wait this long before sending again."),
        milliseconds(
            "retry.backoff.max.ms",
            1000,
            "That wait doubles with each failure up to this.",
            kip="KIP-580",
        ),
        Option(
            "send.buffer.bytes",
            INT,
            131_072,
            "The size of the socket's send buffer (SO_SNDBUF); -1: the system's default.",
            _BUFFER,
            "bytes",
        ),
        milliseconds(
            "socket.connection.setup.timeout.ms",
            10_000,
            "How long opening a connection to one address may take.",
            at_least=1,
            kip="KIP-601",
        ),
        milliseconds(
            "socket.connection.setup.timeout.max.ms",
            30_000,
            "That time doubles with each failure up to this.",
            at_least=1,
            kip="KIP-601",
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
