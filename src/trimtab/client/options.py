"""The client's options, by Kafka's names: producer, consumer, admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trimtab.client.network.bootstrap import checked_servers
from trimtab.client.network.connection_options import connection_options
from trimtab.client.network.options import Options
from trimtab.client.network.refused_options import FOREIGN, NO_OPS, REFUSED
from trimtab.client.serialization import take_deserializers, take_serializers
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import (
    INT_MAX,
    NOT_NEGATIVE,
    POSITIVE,
    Form,
    OptionTable,
    Range,
    boolean,
    compression_levels,
    int32,
    int64,
    string,
    strings,
)
from trimtab.kafka.records import Deserializers, Serializers

_METRICS = (
    int32(
        "metrics.num.samples",
        2,
        "Number of windows from which rates, averages and maxima are computed.",
        POSITIVE,
    ),
    int64("metrics.sample.window.ms", 30_000, "How long each of these windows is.", NOT_NEGATIVE),
)

_CALL_TIMEOUT = int32(
    "default.api.timeout.ms",
    60_000,
    "How long a call without a timeout of its own may take.",
    NOT_NEGATIVE,
    kip="KIP-266",
)

PRODUCER = OptionTable(
    "producer",
    (
        *connection_options(receive_buffer=32_768, max_idle_ms=540_000),
        string(
            "acks",
            "all",
            "Which replicas must store a record before it is acknowledged: none (0), the leader"
            " (1), all in-sync replicas (all or -1).",
            ("0", "1", "-1", "all"),
        ),
        int32(
            "batch.size",
            16_384,
            "The size at which a batch is sent, and the bytes after which the partitioner chooses"
            " another partition.",
            Range(0, INT_MAX),
            unit="bytes",
        ),
        int64(
            "buffer.memory",
            33_554_432,
            "Memory for batches that are not yet acknowledged; send blocks while it is full.",
            POSITIVE,
            unit="bytes",
        ),
        *compression_levels("The level with compression.type={}"),
        string(
            "compression.type",
            "none",
            "How batches are compressed.",
            ("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        int32(
            "delivery.timeout.ms",
            120_000,
            "How long after send a record fails if it is not acknowledged.",
            NOT_NEGATIVE,
            kip="KIP-91",
        ),
        boolean(
            "enable.idempotence",
            True,
            "Whether brokers drop duplicates from retries and keep the order of records.",
            kip="KIP-98",
        ),
        int64("linger.ms", 5, "How long a batch may wait for more records.", NOT_NEGATIVE),
        int64(
            "max.block.ms",
            60_000,
            "How long send may wait for metadata or for buffer memory.",
            NOT_NEGATIVE,
        ),
        int32(
            "max.in.flight.requests.per.connection",
            5,
            "How many requests to one broker may be in flight.",
            POSITIVE,
        ),
        int32(
            "max.request.size",
            1_048_576,
            "The largest request, and so the largest record.",
            NOT_NEGATIVE,
            unit="bytes",
        ),
        int64(
            "metadata.max.idle.ms",
            300_000,
            "Forget the metadata of a topic that was not sent to for this long.",
            Range(5000),
            kip="KIP-526",
        ),
        *_METRICS,
        string(
            "partitioner.class",
            None,
            "round_robin, sticky (KIP-480), uniform_sticky (the same for records with keys too), a"
            " callable or a class, also as module:Name, or None for the built-in logic (KIP-794).",
            kip="KIP-480",
        ),
        boolean(
            "partitioner.adaptive.partitioning.enable",
            True,
            "Whether the built-in logic sends less to brokers that fall behind.",
            kip="KIP-794",
        ),
        int64(
            "partitioner.availability.timeout.ms",
            0,
            "Exclude partitions whose broker accepted no batch for this long; 0 excludes none."
            " Ignored without adaptive partitioning.",
            NOT_NEGATIVE,
            kip="KIP-794",
        ),
        string(
            "partitioner.balance",
            None,
            "None for KIP-794's logic. Else each batch goes where it will be acknowledged soonest,"
            " with equal bytes for all partitions (strict), with a deviation of up to this part of"
            " the mean (such as 0.1), or regardless of balance (free). A broker that does not"
            " answer gets nothing; what it misses in 10 s it gets later, at twice its share.",
            Form(
                r"strict|free|1(\.0*)?|0?\.0*[1-9][0-9]*|[1-9](\.[0-9]+)?[eE]-[0-9]+",
                "strict",
                "strict, free, or a number above 0 and up to 1",
            ),
        ),
        string(
            "partitioner.compat",
            "kip",
            "Which built-in logic: the KIPs' as written, or the Java producer's bit for bit.",
            ("kip", "java"),
        ),
        string(
            "partitioner.hot.keys",
            None,
            "What is done, by topic, with keys that are too heavy for their partition: such as"
            " flights=split,orders=move,clicks=shard:4. split: their records go to as many"
            " partitions as they need, shard: to so many, each with a number, so that consumers"
            " can restore their order (merge_split). move: they go to another partition, in order.",
            Form(
                r"[A-Za-z0-9._-]+=(split|move|shard:([2-9]|[1-9][0-9]{1,4}))"
                r"(,[A-Za-z0-9._-]+=(split|move|shard:([2-9]|[1-9][0-9]{1,4})))*",
                "flights=split",
                "topics, each with =split, =move or =shard:N (N from 2 on), and commas between",
            ),
        ),
        boolean(
            "partitioner.ignore.keys",
            False,
            "Whether the built-in logic spreads records with keys like those without.",
            kip="KIP-794",
        ),
        boolean(
            "partitioner.keys.shown",
            False,
            "Whether partitioning() shows heavy keys themselves, and not only their hashes.",
        ),
        boolean(
            "partitioner.rack.aware",
            False,
            "Whether the built-in logic prefers partitions led in client.rack.",
            kip="KIP-1123",
        ),
        boolean(
            "partitioner.rack.aware.strict",
            False,
            "Whether rack-aware partitioning without client.rack is an error, as in Apache Kafka,"
            " and not a warning.",
        ),
        int32("retries", INT_MAX, "How often a batch may be sent again.", NOT_NEGATIVE),
        int32(
            "transaction.timeout.ms",
            60_000,
            "After this time the coordinator aborts a transaction that is still open.",
            POSITIVE,
            kip="KIP-98",
        ),
        boolean(
            "transaction.two.phase.commit.enable",
            False,
            "Whether transactions have no time limit and stay open until a producer ends them; the"
            " brokers must allow it.",
            kip="KIP-939",
        ),
        string(
            "transactional.id",
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
        string(
            "auto.offset.reset",
            "latest",
            "Where to begin reading without a position: earliest, latest, or none (an error).",
            ("earliest", "latest", "none"),
        ),
        int32(
            "auto.commit.interval.ms",
            5000,
            "How often offsets are committed automatically.",
            NOT_NEGATIVE,
        ),
        boolean("check.crcs", True, "Whether the checksum of each batch is verified."),
        boolean(
            "enable.auto.commit",
            True,
            "With group.id: whether poll, rebalances and close commit the offsets of the records"
            " that earlier polls returned.",
        ),
        boolean(
            "exclude.internal.topics",
            True,
            "Whether an expression given to subscribe never matches internal topics.",
        ),
        int32(
            "fetch.max.bytes",
            52_428_800,
            "How many fetched bytes a consumer holds of each broker; one batch may exceed it.",
            NOT_NEGATIVE,
            kip="KIP-74",
        ),
        int32(
            "fetch.max.wait.ms", 500, "How long a broker waits for fetch.min.bytes.", NOT_NEGATIVE
        ),
        int32(
            "fetch.min.bytes", 1, "Bytes that a broker waits for before it answers.", NOT_NEGATIVE
        ),
        string(
            "group.id",
            None,
            "The consumer's group: who shares the partitions of topics, and commits offsets.",
        ),
        string(
            "group.instance.id",
            None,
            "The name of a static member: it keeps its partitions when it restarts in time.",
            kip="KIP-345",
        ),
        string(
            "group.protocol",
            "classic",
            "Who assigns the partitions: a member (classic), or the coordinator (consumer).",
            ("classic", "consumer"),
            kip="KIP-848",
        ),
        string(
            "group.remote.assignor",
            None,
            "With group.protocol=consumer: the coordinator's way of assigning, such as uniform.",
            kip="KIP-848",
        ),
        int32(
            "heartbeat.interval.ms",
            3000,
            "How often a member of a classic group tells the coordinator that it lives.",
            POSITIVE,
        ),
        string(
            "isolation.level",
            "read_uncommitted",
            "Whether records of open and aborted transactions are read.",
            ("read_uncommitted", "read_committed"),
            kip="KIP-98",
        ),
        int32(
            "max.partition.fetch.bytes",
            1_048_576,
            "The largest part of a fetch response for one partition; one batch may exceed it.",
            NOT_NEGATIVE,
            kip="KIP-74",
        ),
        int32(
            "max.poll.interval.ms",
            300_000,
            "A member that does not poll for this long loses its partitions.",
            POSITIVE,
            kip="KIP-62",
        ),
        int32("max.poll.records", 500, "The most records of one poll.", POSITIVE),
        *_METRICS,
        _CALL_TIMEOUT,
        strings(
            "partition.assignment.strategy",
            ("range", "cooperative-sticky"),
            "The ways of assigning that a member of a classic group offers, the preferred one"
            " first: range, roundrobin, sticky, cooperative-sticky, load.",
            kip="KIP-429",
        ),
        int32(
            "session.timeout.ms",
            45_000,
            "A member of a classic group that is silent for this long is removed.",
            POSITIVE,
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
        _CALL_TIMEOUT._replace(kip="KIP-533"),
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
    transactional_id = options.optional_text("transactional.id")
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
            options["enable.idempotence"] = False
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
    options["delivery.timeout.ms"] = min(linger + request, INT_MAX)
