"""The client's options, by Kafka's names: producer, consumer, admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from trimtab.client.network.bootstrap import checked_servers
from trimtab.client.network.connection_options import connection_options, milliseconds
from trimtab.client.network.options import Options
from trimtab.client.network.refused_options import FOREIGN, NO_OPS, REFUSED
from trimtab.client.serialization import take_deserializers, take_serializers
from trimtab.config import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    Form,
    Option,
    OptionTable,
    Range,
)
from trimtab.errors import UsageError
from trimtab.records import Deserializers, Serializers

_METRICS = (
    Option(
        "metrics.num.samples",
        INT,
        2,
        "Number of windows from which rates, averages and maxima are computed.",
        Range(1),
    ),
    milliseconds("metrics.sample.window.ms", 30_000, "How long each of these windows is."),
)

PRODUCER = OptionTable(
    "producer",
    (
        *connection_options(receive_buffer=32_768, max_idle_ms=540_000),
        Option(
            "acks",
            STRING,
            "all",
            "Which replicas must store a record before it is acknowledged: none (0), the leader"
            " (1), all in-sync replicas (all or -1).",
            ("0", "1", "-1", "all"),
        ),
        Option(
            "batch.size",
            INT,
            16_384,
            "The size at which a batch is sent, and the bytes after which the partitioner chooses"
            " another partition.",
            Range(0, INT_MAX),
            "bytes",
        ),
        Option(
            "buffer.memory",
            LONG,
            33_554_432,
            "Memory for batches that are not yet acknowledged; send blocks while it is full.",
            Range(1),
            "bytes",
        ),
        Option(
            "compression.gzip.level",
            INT,
            -1,
            "The level with compression.type=gzip; -1 is zlib's default.",
            Range(1, 9, (-1,)),
            kip="KIP-390",
        ),
        Option(
            "compression.lz4.level",
            INT,
            9,
            "The level with compression.type=lz4.",
            Range(1, 17),
            kip="KIP-390",
        ),
        Option(
            "compression.type",
            STRING,
            "none",
            "How batches are compressed.",
            ("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        Option(
            "compression.zstd.level",
            INT,
            3,
            "The level with compression.type=zstd.",
            Range(-131_072, 22),
            kip="KIP-390",
        ),
        milliseconds(
            "delivery.timeout.ms",
            120_000,
            "How long after send a record fails if it is not acknowledged.",
            kip="KIP-91",
            type=INT,
        ),
        Option(
            "enable.idempotence",
            BOOLEAN,
            True,
            "Whether brokers drop duplicates from retries and keep the order of records.",
            kip="KIP-98",
        ),
        milliseconds("linger.ms", 5, "How long a batch may wait for more records."),
        milliseconds(
            "max.block.ms", 60_000, "How long send may wait for metadata or for buffer memory."
        ),
        Option(
            "max.in.flight.requests.per.connection",
            INT,
            5,
            "How many requests to one broker may be in flight.",
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
        milliseconds(
            "metadata.max.idle.ms",
            300_000,
            "Forget the metadata of a topic that was not sent to for this long.",
            at_least=5000,
            kip="KIP-526",
        ),
        *_METRICS,
        Option(
            "partitioner.class",
            STRING,
            None,
            "round_robin, sticky (KIP-480), uniform_sticky (the same for records with keys too), a"
            " callable or a class, also as module:Name, or None for the built-in logic (KIP-794).",
            kip="KIP-480",
        ),
        Option(
            "partitioner.adaptive.partitioning.enable",
            BOOLEAN,
            True,
            "Whether the built-in logic sends less to brokers that fall behind.",
            kip="KIP-794",
        ),
        milliseconds(
            "partitioner.availability.timeout.ms",
            0,
            "Exclude partitions whose broker accepted no batch for this long; 0 excludes none."
            " Ignored without adaptive partitioning.",
            kip="KIP-794",
        ),
        Option(
            "partitioner.balance",
            STRING,
            None,
            "None for KIP-794's logic. Else each batch goes where it will be acknowledged soonest,"
            " with equal bytes for all partitions (strict), with a deviation of up to this part of"
            " the mean (such as 0.1), or regardless of balance (free).",
            Form(
                r"strict|free|1(\.0*)?|0?\.0*[1-9][0-9]*|[1-9](\.[0-9]+)?[eE]-[0-9]+",
                "strict",
                "strict, free, or a number above 0 and up to 1",
            ),
        ),
        Option(
            "partitioner.compat",
            STRING,
            "kip",
            "Which built-in logic: the KIPs' as written, or the Java producer's bit for bit.",
            ("kip", "java"),
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
        Option(
            "partitioner.rack.aware.strict",
            BOOLEAN,
            False,
            "Whether rack-aware partitioning without client.rack is an error, as in Apache Kafka,"
            " and not a warning.",
        ),
        Option("retries", INT, INT_MAX, "How often a batch may be sent again.", Range(0)),
        milliseconds(
            "transaction.timeout.ms",
            60_000,
            "After this time the coordinator aborts a transaction that is still open.",
            at_least=1,
            kip="KIP-98",
            type=INT,
        ),
        Option(
            "transaction.two.phase.commit.enable",
            BOOLEAN,
            False,
            "Whether transactions have no time limit and stay open until a producer ends them; the"
            " brokers must allow it.",
            kip="KIP-939",
        ),
        Option(
            "transactional.id",
            STRING,
            None,
            "The producer's name in transactions, the same after a restart; without it there are"
            " no transactions.",
            kip="KIP-98",
        ),
    ),
    {
        **REFUSED,
        "buffer.memory.allocation.strategy": (
            "a batch's memory grows with its records, as in Kafka's incremental; leave it out"
        ),
    },
    NO_OPS,
    FOREIGN,
)

CONSUMER = OptionTable(
    "consumer",
    (
        # Kafka's 65536 costs a third more CPU per byte than the system's default, which adapts.
        *connection_options(receive_buffer=-1, max_idle_ms=540_000),
        Option(
            "auto.offset.reset",
            STRING,
            "latest",
            "Where to begin reading without a position: earliest, latest, or none (an error).",
            ("earliest", "latest", "none"),
        ),
        Option(
            "auto.commit.interval.ms",
            INT,
            5000,
            "How often offsets are committed automatically.",
            Range(0),
            "ms",
        ),
        Option("check.crcs", BOOLEAN, True, "Whether the checksum of each batch is verified."),
        Option(
            "enable.auto.commit",
            BOOLEAN,
            True,
            "With group.id: whether poll, rebalances and close commit the offsets of the records"
            " that earlier polls returned.",
        ),
        Option(
            "exclude.internal.topics",
            BOOLEAN,
            True,
            "Whether an expression given to subscribe never matches internal topics.",
        ),
        Option(
            "fetch.max.bytes",
            INT,
            52_428_800,
            "The largest fetch response; one batch may exceed it.",
            Range(0),
            "bytes",
            "KIP-74",
        ),
        milliseconds(
            "fetch.max.wait.ms", 500, "How long a broker waits for fetch.min.bytes.", type=INT
        ),
        Option(
            "fetch.min.bytes",
            INT,
            1,
            "Bytes that a broker waits for before it answers.",
            Range(0),
            "bytes",
        ),
        Option(
            "group.id",
            STRING,
            None,
            "The consumer's group: who shares the partitions of topics, and commits offsets.",
        ),
        Option(
            "group.instance.id",
            STRING,
            None,
            "The name of a static member: it keeps its partitions when it restarts in time.",
            kip="KIP-345",
        ),
        Option(
            "group.protocol",
            STRING,
            "classic",
            "Who assigns the partitions: a member (classic), or the coordinator (consumer).",
            ("classic", "consumer"),
            kip="KIP-848",
        ),
        Option(
            "group.remote.assignor",
            STRING,
            None,
            "With group.protocol=consumer: the coordinator's way of assigning, such as uniform.",
            kip="KIP-848",
        ),
        Option(
            "heartbeat.interval.ms",
            INT,
            3000,
            "How often a member of a classic group tells the coordinator that it lives.",
            Range(1),
            "ms",
        ),
        Option(
            "isolation.level",
            STRING,
            "read_uncommitted",
            "Whether records of open and aborted transactions are read.",
            ("read_uncommitted", "read_committed"),
            kip="KIP-98",
        ),
        Option(
            "max.partition.fetch.bytes",
            INT,
            1_048_576,
            "The largest part of a fetch response for one partition; one batch may exceed it.",
            Range(0),
            "bytes",
            "KIP-74",
        ),
        Option(
            "max.poll.interval.ms",
            INT,
            300_000,
            "A member that does not poll for this long loses its partitions.",
            Range(1),
            "ms",
            "KIP-62",
        ),
        Option("max.poll.records", INT, 500, "The most records of one poll.", Range(1)),
        *_METRICS,
        milliseconds(
            "default.api.timeout.ms",
            60_000,
            "How long a call without a timeout of its own may take.",
            kip="KIP-266",
            type=INT,
        ),
        Option(
            "partition.assignment.strategy",
            LIST,
            ("range", "cooperative-sticky"),
            "The ways of assigning that a member of a classic group offers, the preferred one"
            " first: range, roundrobin, sticky, cooperative-sticky, load.",
            kip="KIP-429",
        ),
        Option(
            "session.timeout.ms",
            INT,
            45_000,
            "A member of a classic group that is silent for this long is removed.",
            Range(1),
            "ms",
        ),
    ),
    {
        **REFUSED,
        "allow.auto.create.topics": "consumers create no topics; create them with Admin",
    },
    NO_OPS,
    FOREIGN,
)

ADMIN = OptionTable(
    "admin",
    (
        *connection_options(receive_buffer=65_536, max_idle_ms=300_000),
        milliseconds(
            "default.api.timeout.ms",
            60_000,
            "How long a call without a timeout of its own may take.",
            kip="KIP-533",
            type=INT,
        ),
    ),
    {
        **REFUSED,
        "bootstrap.controllers": "name brokers in bootstrap.servers; they pass requests on",
        "retries": "calls are repeated until default.api.timeout.ms is over; leave it out",
    },
    NO_OPS,
    FOREIGN,
)


def gather_options(
    kind: str,
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
    named: Mapping[str, object],
) -> dict[str, object]:
    """A client's options from its first argument and its keyword arguments.

    Args:
        bootstrap_servers: `host:port`, several with commas or as a list; or a dictionary of
            options.
        named: the keyword arguments.

    Raises:
        UsageError: the first argument has another type, or an option is in both arguments.
    """
    if bootstrap_servers is None:
        return dict(named)
    first = (
        bootstrap_servers
        if isinstance(bootstrap_servers, Mapping)
        else {"bootstrap.servers": checked_servers(bootstrap_servers)}
    )
    for name in first.keys() & named.keys():
        raise UsageError(f"{kind} option {name} is given twice: keep one of its spellings")
    return {**first, **named}


def client_options(
    table: OptionTable,
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
    named: Mapping[str, object],
) -> Options:
    """The checked options of a consumer or admin client.

    Args:
        table: `CONSUMER` or `ADMIN`.
        bootstrap_servers, named: as for `gather_options`.

    Raises:
        UsageError: as for `Options`.
    """
    return Options(table, gather_options(table.kind, bootstrap_servers, named))


def producer_options(
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
    given: Mapping[str, object],
) -> tuple[Options, object | None, Serializers | None]:
    """The checked options of a producer; the object given as `partitioner.class`, if any; and the
    serializers, if any.

    `enable.idempotence` is adjusted: as in Kafka it is off, without an error, if the user did not
    set it and `acks` or `retries` do not allow it. The default of `delivery.timeout.ms` is raised
    to `linger.ms` + `request.timeout.ms` if it is less.

    Args:
        bootstrap_servers, given: as for `gather_options`.

    Raises:
        UsageError: as for `Options`, or options that contradict each other; names both values and
            the fix (Kafka's `ProducerConfig`). Or a serializer that cannot be called.
    """
    named = gather_options("producer", bootstrap_servers, given)
    custom: object | None = None
    for name in ("partitioner.class", "partitioner_class"):
        if not isinstance(named.get(name), str | None):
            custom = named.pop(name)
            break
    serializers = take_serializers(named)
    options = Options(PRODUCER, named)
    _adjust_idempotence(options)
    _adjust_delivery_timeout(options)
    return options, custom, serializers


def consumer_options(
    bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
    given: Mapping[str, object],
) -> tuple[Options, Deserializers | None]:
    """The checked options of a consumer, and its deserializers, if any are given.

    Args:
        bootstrap_servers, given: as for `gather_options`.

    Raises:
        UsageError: as for `Options`, or options of its group that contradict each other, or a
            deserializer that cannot be called.
    """
    named = gather_options("consumer", bootstrap_servers, given)
    deserializers = take_deserializers(named)
    return _consumer_group_options(Options(CONSUMER, named)), deserializers


def _consumer_group_options(options: Options) -> Options:
    if options["group.id"] is None:
        for name in ("group.instance.id", "group.remote.assignor"):
            if name in options.given:
                raise UsageError(f"{name}={options[name]!r} needs a group.id; set one")
        return options
    for name in ("group.id", "group.instance.id"):
        if options[name] == "":
            raise UsageError(f"consumer option {name}='': must not be empty; leave it out instead")
    classic = ("heartbeat.interval.ms", "partition.assignment.strategy", "session.timeout.ms")
    if options.text("group.protocol") == "consumer":
        for name in classic:
            if name in options.given:
                raise UsageError(
                    f"{name} and group.protocol=consumer contradict each other: the coordinator"
                    " decides; leave one of the two out"
                )
    elif "group.remote.assignor" in options.given:
        raise UsageError(
            "group.remote.assignor needs group.protocol=consumer; set that, or use"
            " partition.assignment.strategy"
        )
    elif options.integer("heartbeat.interval.ms") >= options.integer("session.timeout.ms"):
        raise UsageError(
            f"heartbeat.interval.ms={options.integer('heartbeat.interval.ms')} must be less than"
            f" session.timeout.ms={options.integer('session.timeout.ms')}; a third of it is usual"
        )
    return options


_MAX_IN_FLIGHT = 5
"""With idempotence a broker remembers the last five batches of a producer and partition."""


def _adjust_idempotence(options: Options) -> None:
    transactional_id = cast(str | None, options["transactional.id"])
    if transactional_id == "":
        raise UsageError(
            "producer option transactional.id='': must not be empty; leave it out to do without"
            " transactions"
        )
    if options.flag("transaction.two.phase.commit.enable"):
        if transactional_id is None:
            raise UsageError(
                "transaction.two.phase.commit.enable=true needs a transactional.id; set one, or"
                " leave it out"
            )
        if "transaction.timeout.ms" in options.given:
            raise UsageError(
                "transaction.two.phase.commit.enable=true and transaction.timeout.ms contradict"
                " each other: such transactions have no time limit; leave one of the two out"
            )
    acks, retries = options.text("acks"), options.integer("retries")
    in_flight = options.integer("max.in.flight.requests.per.connection")
    if options.flag("enable.idempotence"):
        requirement = ""
        if acks not in ("all", "-1"):
            requirement = f"acks=all, acks is {acks}"
        elif retries == 0:
            requirement = "retries of at least 1, retries is 0"
        if requirement and "enable.idempotence" in options.given:
            raise UsageError(
                f"enable.idempotence=true needs {requirement}; correct that, or set"
                " enable.idempotence=false"
            )
        if requirement:
            options.adjust("enable.idempotence", False)
            if transactional_id is not None:
                raise UsageError(
                    f"transactional.id={transactional_id!r} needs {requirement}; correct that, or"
                    " leave transactional.id out"
                )
        elif in_flight > _MAX_IN_FLIGHT:
            raise UsageError(
                "enable.idempotence=true needs max.in.flight.requests.per.connection of at most"
                f" {_MAX_IN_FLIGHT}, it is {in_flight}; lower it or set enable.idempotence=false"
            )
    elif transactional_id is not None:
        raise UsageError(
            f"transactional.id={transactional_id!r} needs enable.idempotence=true, it is false;"
            " leave out one of the two"
        )


def _adjust_delivery_timeout(options: Options) -> None:
    linger, request = options.integer("linger.ms"), options.integer("request.timeout.ms")
    delivery = options.integer("delivery.timeout.ms")
    if delivery >= linger + request:
        return
    if "delivery.timeout.ms" in options.given:
        raise UsageError(
            f"delivery.timeout.ms={delivery} must be at least linger.ms + request.timeout.ms ="
            f" {linger} + {request} = {linger + request}; raise it, or lower one of these"
        )
    options.adjust("delivery.timeout.ms", min(linger + request, INT_MAX))
