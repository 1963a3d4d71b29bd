"""The client's options, by Kafka's names: producer, consumer, admin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from trimtab.client.connections import ConnectionOptions, Node, parse_bootstrap_servers
from trimtab.config import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    Option,
    OptionTable,
    Range,
    Value,
    read,
)
from trimtab.errors import UsageError

_COMMON = (
    Option(
        "bootstrap.servers", LIST, (), "Where to reach the cluster first: host:port, host:port, …"
    ),
    Option("client.id", STRING, "", "A name for this client in the brokers' logs and metrics."),
    Option(
        "client.rack", STRING, "", "The rack (availability zone) of this client.", kip="KIP-392"
    ),
    Option("request.timeout.ms", INT, 30_000, "How long to wait for a response.", Range(1), "ms"),
    Option(
        "metadata.max.age.ms",
        LONG,
        300_000,
        "Ask for the cluster's metadata anew this often.",
        Range(0),
        "ms",
    ),
    Option(
        "reconnect.backoff.ms", LONG, 50, "Wait this long before connecting again.", Range(0), "ms"
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
    Option("retry.backoff.ms", LONG, 100, "Wait this long before sending again.", Range(0), "ms"),
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
        "socket.connection.setup.timeout.ms",
        LONG,
        10_000,
        "How long opening a connection may take.",
        Range(1),
        "ms",
        "KIP-601",
    ),
)

PRODUCER = OptionTable(
    "producer",
    (
        *_COMMON,
        Option(
            "acks",
            STRING,
            "all",
            "Who must have the record before it counts as sent: nobody (0), the leader (1),"
            " all in-sync replicas (all or -1).",
            ("0", "1", "-1", "all"),
        ),
        Option(
            "batch.size",
            INT,
            16_384,
            "The size at which a batch is sent, and the bytes after which the partitioner turns"
            " to another partition.",
            Range(0, INT_MAX),
            "bytes",
        ),
        Option(
            "buffer.memory",
            LONG,
            33_554_432,
            "What may wait to be sent; beyond it send blocks.",
            Range(1),
            "bytes",
        ),
        Option(
            "compression.type",
            STRING,
            "none",
            "How batches are compressed.",
            ("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        Option(
            "delivery.timeout.ms",
            INT,
            120_000,
            "How long after send a record is given up.",
            Range(0),
            "ms",
            "KIP-91",
        ),
        Option(
            "enable.idempotence",
            BOOLEAN,
            True,
            "Whether brokers drop what a retry sends twice and keep the order.",
            kip="KIP-98",
        ),
        Option("linger.ms", LONG, 5, "How long a batch may wait for more records.", Range(0), "ms"),
        Option(
            "max.block.ms",
            LONG,
            60_000,
            "How long send may wait for metadata or for buffer memory.",
            Range(0),
            "ms",
        ),
        Option(
            "max.in.flight.requests.per.connection",
            INT,
            5,
            "How many requests to one broker may await their response.",
            Range(1),
        ),
        Option(
            "max.request.size",
            INT,
            1_048_576,
            "The largest request, and so the largest record.",
            Range(0),
            "bytes",
        ),
        Option(
            "partitioner.class",
            STRING,
            None,
            "round_robin, sticky (KIP-480), a callable, or None for the built-in logic (KIP-794).",
            kip="KIP-480",
        ),
        Option(
            "partitioner.adaptive.partitioning.enable",
            BOOLEAN,
            True,
            "Whether the built-in logic sends less to brokers that fall behind.",
            kip="KIP-794",
        ),
        Option(
            "partitioner.availability.timeout.ms",
            LONG,
            0,
            "Leave out partitions whose broker took nothing for this long; 0 never does."
            " Ignored without adaptive partitioning.",
            Range(0),
            "ms",
            "KIP-794",
        ),
        Option(
            "partitioner.ignore.keys",
            BOOLEAN,
            False,
            "Whether the built-in logic spreads records with keys like those without.",
            kip="KIP-794",
        ),
        Option(
            "partitioner.rack.aware",
            BOOLEAN,
            False,
            "Whether the built-in logic prefers partitions led in client.rack.",
            kip="KIP-1123",
        ),
        Option("retries", INT, INT_MAX, "How often a batch is sent again.", Range(0)),
    ),
)

CONSUMER = OptionTable(
    "consumer",
    (
        *_COMMON,
        Option(
            "auto.offset.reset",
            STRING,
            "latest",
            "Where to begin without a position: earliest, latest, or none (an error).",
            ("earliest", "latest", "none"),
        ),
        Option("check.crcs", BOOLEAN, True, "Whether the checksum of each batch is verified."),
        Option(
            "fetch.max.bytes",
            INT,
            52_428_800,
            "The largest fetch response; one batch may exceed it.",
            Range(0),
            "bytes",
            "KIP-74",
        ),
        Option(
            "fetch.max.wait.ms",
            INT,
            500,
            "How long a broker waits for fetch.min.bytes.",
            Range(0),
            "ms",
        ),
        Option(
            "fetch.min.bytes",
            INT,
            1,
            "What a broker waits for before it answers.",
            Range(0),
            "bytes",
        ),
        Option(
            "isolation.level",
            STRING,
            "read_uncommitted",
            "Whether records of open and aborted transactions are seen.",
            ("read_uncommitted", "read_committed"),
            kip="KIP-98",
        ),
        Option(
            "max.partition.fetch.bytes",
            INT,
            1_048_576,
            "The most that one partition takes of a fetch response; one batch may exceed it.",
            Range(0),
            "bytes",
            "KIP-74",
        ),
        Option("max.poll.records", INT, 500, "The most records of one poll.", Range(1)),
        Option(
            "default.api.timeout.ms",
            INT,
            60_000,
            "How long a call without a timeout of its own may take.",
            Range(0),
            "ms",
            "KIP-266",
        ),
    ),
)

ADMIN = OptionTable(
    "admin",
    (
        *_COMMON,
        Option(
            "default.api.timeout.ms",
            INT,
            60_000,
            "How long a call without a timeout of its own may take.",
            Range(0),
            "ms",
            "KIP-533",
        ),
    ),
)


class Options:
    """The checked options of one client, read by type.

    Args:
        table: `PRODUCER`, `CONSUMER` or `ADMIN`.
        given: what the user set, by dotted or snake-case name.

    Raises:
        UsageError: an unknown name, a wrong type, a value out of range, or no bootstrap servers.
    """

    def __init__(self, table: OptionTable, given: Mapping[str, object]) -> None:
        self.kind = table.kind
        self._values = read(table, given)
        servers = cast(tuple[str, ...], self._values["bootstrap.servers"])
        if not servers:
            raise UsageError(
                f"{table.kind} option bootstrap.servers is missing; name at least one broker,"
                " such as 127.0.0.1:9092"
            )
        self.bootstrap: list[Node] = parse_bootstrap_servers(servers)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def integer(self, name: str) -> int:
        return cast(int, self._values[name])

    def number(self, name: str) -> float:
        return cast(float, self._values[name])

    def seconds(self, name: str) -> float:
        """An option in milliseconds, as seconds."""
        return cast(int, self._values[name]) / 1000

    def text(self, name: str) -> str:
        return cast(str, self._values[name])

    def flag(self, name: str) -> bool:
        return cast(bool, self._values[name])

    def connection_options(self) -> ConnectionOptions:
        return ConnectionOptions(
            client_id=self.text("client.id") or f"trimtab-{self.kind}",
            request_timeout=self.seconds("request.timeout.ms"),
            connect_timeout=self.seconds("socket.connection.setup.timeout.ms"),
            backoff=self.seconds("reconnect.backoff.ms"),
            backoff_max=self.seconds("reconnect.backoff.max.ms"),
        )
