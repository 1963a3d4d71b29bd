"""What the load tables say in words: rules that are broken, the evidence, and what to do.

A finding's action is a command that can be run as it stands, or the producer's or consumer's option
to set. A rule looks at the last window of a table only; an old one is history.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from trimtab.errors import UsageError
from trimtab.spark.load.inputs import ratio, window_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Thresholds(NamedTuple):
    """From where on a rule is broken.

    Attributes:
        max_over_mean: a topic's fullest partition over the mean. Of two partitions 1.5, as 2 is all
            there can be. Where records are few it must be more than chance alone makes of it.
        min_bytes: topics and brokers with fewer bytes are left alone.
        key_share: of a topic's records, of one key, if nothing says how many partitions the topic
            has. If `skew` does, a key is hot that alone takes a partition beyond `max_over_mean`.
        key_records: of one key, at least.
        used_share: of a broker's limit of partitions (KIP-578).
        days_to_full: of a broker's disks.
        free_share: of a broker's disks.
        batch_bytes: mean size of a topic's batches.
        savable_cost: between racks, in the window, in the currency of `rack_traffic`.
        leader_over_mean: bytes that a broker leads over the brokers' mean, and over those of the
            largest partition that it leads, as moving partitions makes none of them smaller.
        lag_records: of a group in a topic, for lag that grows.
        lag_seconds: of a group in a partition, where that is known.
    """

    max_over_mean: float = 2.0
    min_bytes: int = 1_000_000
    key_share: float = 0.1
    key_records: int = 100
    used_share: float = 0.8
    days_to_full: float = 14.0
    free_share: float = 0.1
    batch_bytes: int = 1024
    savable_cost: float = 0.01
    leader_over_mean: float = 1.5
    lag_records: int = 1000
    lag_seconds: float = 60.0


_CHANCE = 0.001
"""How likely a level topic may look uneven."""

_SWITCH_BYTES = 16_384
"""Producers change the partition of records without keys after about as many bytes (KIP-794)."""


def findings(
    *,
    load: DataFrame | None = None,
    skew: DataFrame | None = None,
    keys: DataFrame | None = None,
    racks: DataFrame | None = None,
    capacity: DataFrame | None = None,
    lag: DataFrame | None = None,
    thresholds: Thresholds | None = None,
) -> DataFrame:
    """One row for each rule that is broken; batch only.

    Args:
        load, skew, keys, racks, capacity, lag: what `partition_load`, `topic_skew`, `hot_keys`,
            `rack_traffic`, `broker_capacity` and `group_lag` return; those not given are not looked
            at. With `capacity` brokers that lead nothing count, too, with `skew` hot keys are
            judged by the number of partitions.
        thresholds: from where on rules are broken.

    Returns:
        severity (1: records are refused or lost soon, 2: it costs, 3: worth knowing), rule, subject
        (a topic, broker or group), evidence, action (all strings), the most severe first.

    Raises:
        UsageError: no table is given.
    """
    limits = thresholds or Thresholds()
    rules: list[tuple[DataFrame | None, Callable[[DataFrame, Thresholds], DataFrame]]] = [
        (skew, _uneven_by_partitioner),
        (skew, _uneven_by_key),
        (keys, partial(_hot_key, skew=None if skew is None else _last(skew))),
        (load, _small_batches),
        (load, partial(_uneven_leaders, capacity=capacity)),
        (racks, _savable_traffic),
        (capacity, _few_partitions_left),
        (capacity, _disk_full_soon),
        (capacity, _disk_nearly_full),
        (lag, _growing_lag),
        (lag, _stalled_group),
    ]
    found = [rule(_last(table), limits) for table, rule in rules if table is not None]
    if not found:
        raise UsageError("findings() needs at least one table: give load=, skew= or another")
    return reduce(lambda one, other: one.unionByName(other), found).orderBy(
        "severity", "rule", "subject"
    )


def _last(table: DataFrame) -> DataFrame:
    """The rows of the last window, or all."""
    if not window_of(table):
        return table
    last = table.agg(f.max("window.start").alias("last"))
    return table.join(f.broadcast(last), f.col("window.start") == f.col("last")).drop(
        "window", "last"
    )


def _finding(
    broken: DataFrame, severity: int, rule: str, subject: Column, evidence: Column, action: Column
) -> DataFrame:
    return broken.select(
        f.lit(severity).alias("severity"),
        f.lit(rule).alias("rule"),
        subject.cast("string").alias("subject"),
        evidence.alias("evidence"),
        action.alias("action"),
    )


def _uneven_by_partitioner(skew: DataFrame, limits: Thresholds) -> DataFrame:
    broken = _uneven(skew, limits).filter("NullKeyShare >= 0.5")
    return _finding(
        broken,
        2,
        "uneven-without-keys",
        f.col("topic"),
        f.format_string(
            "partition %d takes %.0f %% of the bytes, %.1f times the mean of %d partitions,"
            " although %.0f %% of the records have no key",
            "TopPartition",
            f.col("TopShare") * 100,
            "MaxOverMean",
            "Partitions",
            f.col("NullKeyShare") * 100,
        ),
        f.lit(
            "producers: leave partitioner.class and the partition of a record unset, so that the"
            " built-in partitioner evens them out; `trimtab experiment` compares the ways"
        ),
    )


def _uneven_by_key(skew: DataFrame, limits: Thresholds) -> DataFrame:
    broken = _uneven(skew, limits).filter("NullKeyShare is null or NullKeyShare < 0.5")
    return _finding(
        broken,
        2,
        "uneven-by-key",
        f.col("topic"),
        f.format_string(
            "partition %d takes %.0f %% of the bytes, %.1f times the mean of %d partitions",
            "TopPartition",
            f.col("TopShare") * 100,
            "MaxOverMean",
            "Partitions",
        ),
        f.lit(
            "load.hot_keys tells whether one key is the cause, load.what_if whether another number"
            " of partitions would help; where order by key is not needed,"
            " producers: partitioner.ignore.keys=true"
        ),
    )


def _uneven(skew: DataFrame, limits: Thresholds) -> DataFrame:
    # What falls into a partition by chance: records with keys one by one, others in one run after
    # the other. Bernstein's inequality for the fullest of all partitions.
    runs = f.least(f.col("TotalRecords"), f.col("TotalBytes") / _SWITCH_BYTES)
    keyed = f.coalesce(f.col("NullKeyShare") < 0.5, f.lit(False))
    events = f.when(keyed, f.col("TotalRecords")).otherwise(runs) / f.col("Partitions")
    each = ratio(f.log(f.col("Partitions") / _CHANCE), events)
    by_chance = 1 + each / 3 + f.sqrt(each * each / 9 + 2 * each)
    return skew.filter(
        (f.col("TotalBytes") >= limits.min_bytes)
        & (f.col("MaxOverMean") > f.greatest(_most_over_mean(limits), by_chance))
    )


def _most_over_mean(limits: Thresholds) -> Column:
    """From where on the fullest partition is too full: half way to all in one, if there are few."""
    return f.least(f.lit(limits.max_over_mean), (f.col("Partitions") + 1) / 2)


def _hot_key(keys: DataFrame, limits: Thresholds, skew: DataFrame | None) -> DataFrame:
    many = keys.filter(f.col("Records") >= limits.key_records)
    share = f.col("ShareOfRecords")
    if skew is None:
        broken = many.filter(share > limits.key_share)
    else:
        # Its partition has this key, and a level part of all others.
        over_mean = f.col("Partitions") * share + (1 - share)
        broken = many.join(skew.select("topic", "Partitions", "TotalBytes"), "topic").filter(
            (f.col("TotalBytes") >= limits.min_bytes) & (over_mean > _most_over_mean(limits))
        )
    if "key" in keys.columns:
        # A key need not be text.
        name = f.coalesce(
            f.try_validate_utf8(f.col("key").cast("string")), f.concat(f.lit("0x"), f.hex("key"))
        )
    else:
        name = f.concat(f.lit("with hash "), f.col("keyHash").cast("string"))
    return _finding(
        broken,
        2,
        "hot-key",
        f.col("topic"),
        f.format_string(
            "key %s has %.0f %% of the records, in partition %d; no number of partitions makes that"
            " one smaller",
            name,
            f.col("ShareOfRecords") * 100,
            "Partition",
        ),
        f.lit(
            "split the key where it is produced (key#1, key#2, ...), or, where order by key is not"
            " needed, producers: partitioner.ignore.keys=true"
        ),
    )


def _small_batches(load: DataFrame, limits: Thresholds) -> DataFrame:
    sums = load.groupBy("topic").agg(
        f.sum("TotalBytes").alias("bytes"),
        f.sum("TotalBatches").alias("batches"),
        f.sum("TotalRecords").alias("records"),
    )
    broken = sums.filter(
        (f.col("bytes") >= limits.min_bytes)
        & (f.col("bytes") < f.col("batches") * limits.batch_bytes)
    )
    return _finding(
        broken,
        3,
        "small-batches",
        f.col("topic"),
        f.format_string(
            "a batch has %.0f bytes and %.1f records on average; 61 bytes of each are its header",
            f.col("bytes") / f.col("batches"),
            f.col("records") / f.col("batches"),
        ),
        f.lit("producers: linger.ms=20 or more, and compression.type=lz4 or zstd"),
    )


def _uneven_leaders(load: DataFrame, limits: Thresholds, capacity: DataFrame | None) -> DataFrame:
    led = load.filter("leader >= 0").groupBy("leader")
    sizes = led.agg(f.sum("TotalBytes").alias("bytes"), f.max("TotalBytes").alias("largest"))
    brokers = sizes if capacity is None else capacity
    counts = brokers.agg(f.count("*").alias("brokers"))
    total = sizes.agg(f.sum("bytes").alias("total"))
    mean = counts.crossJoin(total).withColumn("mean", f.col("total") / f.col("brokers"))
    broken = sizes.crossJoin(f.broadcast(mean)).filter(
        (f.col("bytes") > f.greatest("mean", "largest") * limits.leader_over_mean)
        & (f.col("bytes") >= limits.min_bytes)
    )
    return _finding(
        broken,
        2,
        "uneven-leaders",
        f.concat(f.lit("broker "), f.col("leader").cast("string")),
        f.format_string(
            "the partitions that it leads took %.1f times the bytes of the mean of %d brokers",
            f.col("bytes") / f.col("mean"),
            "brokers",
        ),
        f.lit("trimtab reassign --generate > plan.txt shows a plan that copies the least"),
    )


def _savable_traffic(racks: DataFrame, limits: Thresholds) -> DataFrame:
    sums = racks.groupBy("topic", "kind").agg(
        f.sum("SavableBytes").alias("bytes"), f.sum("SavableCost").alias("cost")
    )
    broken = sums.filter((f.col("bytes") > 0) & (f.col("cost") > limits.savable_cost))
    is_produce = f.col("kind") == "produce"
    return _finding(
        broken,
        2,
        "savable-rack-traffic",
        f.col("topic"),
        f.format_string(
            "%.3f GB went between racks (%s) that need not: %.2f in cost",
            f.col("bytes") / 1e9,
            "kind",
            "cost",
        ),
        f.when(
            is_produce,
            "producers: client.rack=<their rack> and partitioner.rack.aware=true (KIP-1123)",
        ).otherwise(
            "consumers: client.rack=<their rack>; brokers: trimtab configs --alter --entity-type"
            " brokers --entity-default --add-config replica.selector.class="
            "org.apache.kafka.common.replica.RackAwareReplicaSelector (KIP-392)"
        ),
    )


def _few_partitions_left(capacity: DataFrame, limits: Thresholds) -> DataFrame:
    broken = capacity.filter(f.col("UsedShare") >= limits.used_share)
    return _finding(
        broken,
        1,
        "few-partitions-left",
        f.concat(f.lit("broker "), f.col("broker").cast("string")),
        f.format_string(
            "it has %d of at most %d partition replicas (max.broker.partitions)",
            "Replicas",
            "MaxReplicas",
        ),
        f.lit("trimtab limits shows which brokers have room; trimtab reassign --generate moves"),
    )


_FREE_DISKS = (
    "trimtab log-dirs shows the largest topics; trimtab configs --alter --topic <topic>"
    " --add-config retention.bytes=<bytes> bounds one"
)


def _disk_full_soon(capacity: DataFrame, limits: Thresholds) -> DataFrame:
    broken = capacity.filter(f.col("DaysToFull") < limits.days_to_full)
    return _finding(
        broken,
        1,
        "disk-full-soon",
        f.concat(f.lit("broker "), f.col("broker").cast("string")),
        f.format_string(
            "its logs grow by %.2f GB a day, and its disks have %.2f GB left: %.1f days",
            f.col("BytesPerDay") / 1e9,
            f.col("DiskUsableBytes") / 1e9,
            "DaysToFull",
        ),
        f.lit(_FREE_DISKS),
    )


def _disk_nearly_full(capacity: DataFrame, limits: Thresholds) -> DataFrame:
    free = ratio("DiskUsableBytes", "DiskTotalBytes")
    broken = capacity.filter(free < limits.free_share)
    return _finding(
        broken,
        1,
        "disk-nearly-full",
        f.concat(f.lit("broker "), f.col("broker").cast("string")),
        f.format_string(
            "%.1f %% of its disks is left, %.2f of %.2f GB",
            free * 100,
            f.col("DiskUsableBytes") / 1e9,
            f.col("DiskTotalBytes") / 1e9,
        ),
        f.lit(_FREE_DISKS),
    )


def _growing_lag(lag: DataFrame, limits: Thresholds) -> DataFrame:
    return _lagging(
        lag,
        limits,
        "WARN",
        2,
        "growing-lag",
        "members commit, and fall behind all the same, in %d partitions, by %d records in all",
        "give the group more members, up to one a partition; trimtab topics --alter --topic <topic>"
        " --partitions <n> makes room for more (load.what_if: which keys would move)",
        least=limits.lag_records,
    )


def _stalled_group(lag: DataFrame, limits: Thresholds) -> DataFrame:
    return _lagging(
        lag,
        limits,
        "STALL",
        1,
        "stalled-group",
        "nothing was committed although there are records, in %d partitions, %d records in all",
        "look at the members' logs; trimtab consume --topic <topic> --partition <n> --offset"
        " <committed> shows the record that it stands at",
        least=1,
    )


def _lagging(
    lag: DataFrame,
    limits: Thresholds,
    status: str,
    severity: int,
    rule: str,
    evidence: str,
    action: str,
    *,
    least: int,
) -> DataFrame:
    # Members commit every few seconds: a lag of less than that is none.
    is_old = f.coalesce(f.col("LagSeconds") >= limits.lag_seconds, f.lit(True))
    sums = (
        lag.filter((f.col("Status") == status) & is_old)
        .groupBy("group", "topic")
        .agg(f.count("*").alias("partitions"), f.sum("LagRecords").alias("records"))
        .filter(f.col("records") >= least)
    )
    return _finding(
        sums,
        severity,
        rule,
        f.format_string("group %s, topic %s", "group", "topic"),
        f.format_string(evidence, "partitions", "records"),
        f.lit(action),
    )
