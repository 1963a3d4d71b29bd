"""Findings from the load tables: broken rules, with evidence and a recommended action.

A finding's action is a command that can be run as written, or an option of the producer or consumer
to set. A rule checks only the last window of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from trimtab.balance import advice
from trimtab.balance.advice import CHANCE, SWITCH_BYTES, Advice, Thresholds
from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import ratio, window_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    """One row for each broken rule and its subject; batch only.

    Args:
        load, skew, keys, racks, capacity, lag: what `partition_load`, `topic_skew`, `hot_keys`,
            `rack_traffic`, `broker_capacity` and `group_lag` return; rules without their table are
            not checked. With `capacity`, brokers that lead no partition count, too; with `skew`,
            hot keys depend on the number of partitions.
        thresholds: the default is `Thresholds()`.

    Returns:
        severity (1: records will soon be refused or lost, 2: causes cost, 3: information), rule,
        subject (a topic, broker or group), evidence, action (all strings). The most severe first;
        of one severity, the one that the most bytes are about: those that lie or travel where they
        should not, wait to be read, or are on a disk that fills.

    Raises:
        UsageError: no table is given.
    """
    limits = thresholds or Thresholds()
    given = {
        "load": load,
        "skew": skew,
        "keys": keys,
        "racks": racks,
        "capacity": capacity,
        "lag": lag,
    }
    tables = {name: _last(table) for name, table in given.items() if table is not None}
    found = [rule.apply(tables, limits) for rule in _RULES if rule.table in tables]
    if not found:
        raise UsageError("findings() needs at least one table: give load=, skew= or another")
    # Findings are few: in one partition, sorting needs no extra job that samples them.
    together = reduce(lambda one, other: one.unionByName(other), found).coalesce(1)
    return together.orderBy("severity", f.desc("harm"), "rule", "subject").drop("harm")


def _last(table: DataFrame) -> DataFrame:
    """The rows of the last window; all rows of a table without windows."""
    if not window_of(table):
        return table
    last = table.agg(f.max("window.start").alias("last"))
    return table.join(f.broadcast(last), f.col("window.start") == f.col("last")).drop(
        "window", "last"
    )


_VALUE: Final = re.compile(r"\{([^{}]+):([^{}:]+)\}")


class _Rule(NamedTuple):
    """A rule, and the finding for each row that breaks it.

    Attributes:
        table: the table that it needs, by its name as an argument of `findings`.
        broken: returns the rows that break it, from all given tables.
        subject: an SQL expression on these rows.
        evidence: a text with SQL expressions on these rows, and their formats: `{bytes / 1e9:.2f}`.
        harm: an SQL expression on these rows: the bytes that it is about, 0 if nothing tells them.
    """

    advice: Advice
    table: str
    broken: Callable[[Mapping[str, DataFrame], Thresholds], DataFrame]
    subject: str
    evidence: str
    harm: str

    def apply(self, tables: Mapping[str, DataFrame], limits: Thresholds) -> DataFrame:
        texts, values, formats = (_VALUE.split(self.evidence)[at::3] for at in range(3))
        pattern = "".join(
            text.replace("%", "%%") + (f"%{format_spec}" if format_spec else "")
            for text, format_spec in zip_longest(texts, formats)
        )
        return self.broken(tables, limits).select(
            f.lit(self.advice.severity).alias("severity"),
            f.lit(self.advice.rule).alias("rule"),
            f.expr(self.subject).cast("string").alias("subject"),
            f.format_string(pattern, *map(f.expr, values)).alias("evidence"),
            f.lit(self.advice.action).alias("action"),
            f.coalesce(f.expr(self.harm).cast("double"), f.lit(0.0)).alias("harm"),
        )


def _uneven(tables: Mapping[str, DataFrame], limits: Thresholds, null_keys: str) -> DataFrame:
    # As `most_by_chance`.
    runs = f.least(f.col("TotalRecords"), f.col("TotalBytes") / SWITCH_BYTES)
    keyed = f.coalesce(f.col("NullKeyShare") < 0.5, f.lit(False))
    events = f.when(keyed, f.col("TotalRecords")).otherwise(runs) / f.col("Partitions")
    each = ratio(f.log(f.col("Partitions") / CHANCE), events)
    by_chance = 1 + each / 3 + f.sqrt(each * each / 9 + 2 * each)
    return (
        tables["skew"]
        .filter(null_keys)
        .filter(
            (f.col("TotalBytes") >= limits.min_bytes)
            & (f.col("MaxOverMean") > f.greatest(_most_over_mean(limits), by_chance))
        )
    )


def _most_over_mean(limits: Thresholds) -> Column:
    """The threshold for the largest partition; with few partitions, half way to all in one."""
    return f.least(f.lit(limits.max_over_mean), (f.col("Partitions") + 1) / 2)


def _hot_keys(tables: Mapping[str, DataFrame], limits: Thresholds) -> DataFrame:
    keys = tables["keys"].filter(f.col("Records") >= limits.key_records)
    share = f.col("ShareOfRecords")
    if "skew" not in tables:
        broken = keys.filter(share > limits.key_share)
    else:
        # The key's partition gets this key and an even share of all other keys.
        over_mean = f.col("Partitions") * share + (1 - share)
        sizes = tables["skew"].select("topic", "Partitions", "TotalBytes")
        broken = keys.join(sizes, "topic").filter(
            (f.col("TotalBytes") >= limits.min_bytes) & (over_mean > _most_over_mean(limits))
        )
    if "key" in keys.columns:
        # A key need not be text.
        name = "coalesce(try_validate_utf8(cast(key as string)), concat('0x', hex(key)))"
    else:
        name = "concat('with hash ', cast(keyHash as string))"
    return broken.withColumn("name", f.expr(name))


def _small_batches(tables: Mapping[str, DataFrame], limits: Thresholds) -> DataFrame:
    sums = (
        tables["load"]
        .groupBy("topic")
        .agg(
            f.sum("TotalBytes").alias("bytes"),
            f.sum("TotalBatches").alias("batches"),
            f.sum("TotalRecords").alias("records"),
        )
    )
    return sums.filter(
        (f.col("bytes") >= limits.min_bytes)
        & (f.col("bytes") < f.col("batches") * limits.batch_bytes)
    )


def _uneven_leaders(tables: Mapping[str, DataFrame], limits: Thresholds) -> DataFrame:
    led = tables["load"].filter("leader >= 0").groupBy("leader")
    sizes = led.agg(f.sum("TotalBytes").alias("bytes"), f.max("TotalBytes").alias("largest"))
    counts = tables.get("capacity", sizes).agg(f.count("*").alias("brokers"))
    total = sizes.agg(f.sum("bytes").alias("total"))
    mean = counts.crossJoin(total).withColumn("mean", f.col("total") / f.col("brokers"))
    return sizes.crossJoin(f.broadcast(mean)).filter(
        (f.col("bytes") > f.greatest("mean", "largest") * limits.leader_over_mean)
        & (f.col("bytes") >= limits.min_bytes)
    )


def _savable_traffic(tables: Mapping[str, DataFrame], limits: Thresholds, kinds: str) -> DataFrame:
    sums = (
        tables["racks"]
        .filter(kinds)
        .groupBy("topic", "kind")
        .agg(f.sum("SavableBytes").alias("bytes"), f.sum("SavableCost").alias("cost"))
    )
    return sums.filter((f.col("bytes") > 0) & (f.col("cost") > limits.savable_cost))


def _disk_nearly_full(tables: Mapping[str, DataFrame], limits: Thresholds) -> DataFrame:
    free = ratio("DiskUsableBytes", "DiskTotalBytes")
    return tables["capacity"].withColumn("free", free).filter(f.col("free") < limits.free_share)


def _lagging(tables: Mapping[str, DataFrame], limits: Thresholds, status: str) -> DataFrame:
    least = 1 if status == "STALL" else limits.lag_records
    # Members commit every few seconds: a lag of a few seconds is normal.
    is_old = f.coalesce(f.col("LagSeconds") >= limits.lag_seconds, f.lit(True))
    return (
        tables["lag"]
        .filter((f.col("Status") == status) & is_old)
        .groupBy("group", "topic")
        .agg(
            f.count("*").alias("partitions"),
            f.sum("LagRecords").alias("records"),
            f.sum("LagBytes").alias("bytes"),
            f.max("LagSeconds").alias("seconds"),
        )
        .filter(f.col("records") >= least)
    )


_BROKER: Final = "concat('broker ', cast(broker as string))"
_GROUP: Final = "format_string('group %s, topic %s', `group`, topic)"
_UNEVEN: Final = (
    "partition {TopPartition:d} takes {TopShare * 100:.0f} % of the bytes, {MaxOverMean:.1f} times"
    " the mean of {Partitions:d} partitions"
)
_SAVABLE: Final = (
    "{bytes / 1e9:.3f} GB went between racks ({kind:s}) that need not: {cost:.2f} in cost"
)
_TOO_MUCH: Final = "TotalBytes * (TopShare - 1 / Partitions)"
_RULES: Final = (
    _Rule(
        advice.UNEVEN_WITHOUT_KEYS,
        "skew",
        partial(_uneven, null_keys="NullKeyShare >= 0.5"),
        "topic",
        _UNEVEN + ", although {NullKeyShare * 100:.0f} % of the records have no key",
        _TOO_MUCH,
    ),
    _Rule(
        advice.UNEVEN_BY_KEY,
        "skew",
        partial(_uneven, null_keys="NullKeyShare is null or NullKeyShare < 0.5"),
        "topic",
        _UNEVEN,
        _TOO_MUCH,
    ),
    _Rule(
        advice.HOT_KEY,
        "keys",
        _hot_keys,
        "topic",
        "key {name:s} has {ShareOfRecords * 100:.0f} % of the records, in partition {Partition:d};"
        " no number of partitions makes that one smaller",
        "bytes",
    ),
    _Rule(
        advice.SMALL_BATCHES,
        "load",
        _small_batches,
        "topic",
        "a batch has {bytes / batches:.0f} bytes and {records / batches:.1f} records on average;"
        " 61 bytes of each are its header",
        "61 * batches",
    ),
    _Rule(
        advice.UNEVEN_LEADERS,
        "load",
        _uneven_leaders,
        "concat('broker ', cast(leader as string))",
        "the partitions that it leads took {bytes / mean:.1f} times the bytes of the mean of"
        " {brokers:d} brokers",
        "bytes - mean",
    ),
    _Rule(
        advice.SAVABLE_TO_PRODUCE,
        "racks",
        partial(_savable_traffic, kinds="kind = 'produce'"),
        "topic",
        _SAVABLE,
        "bytes",
    ),
    _Rule(
        advice.SAVABLE_TO_CONSUME,
        "racks",
        partial(_savable_traffic, kinds="kind <> 'produce'"),
        "topic",
        _SAVABLE,
        "bytes",
    ),
    _Rule(
        advice.FEW_PARTITIONS_LEFT,
        "capacity",
        lambda tables, limits: tables["capacity"].filter(f.col("UsedShare") >= limits.used_share),
        _BROKER,
        "it has {Replicas:d} of at most {MaxReplicas:d} partition replicas (max.broker.partitions)",
        "LogBytes",
    ),
    _Rule(
        advice.DISK_FULL_SOON,
        "capacity",
        lambda tables, limits: tables["capacity"].filter(f.col("DaysToFull") < limits.days_to_full),
        _BROKER,
        "its logs grow by {BytesPerDay / 1e9:.2f} GB a day, and its disks have"
        " {DiskUsableBytes / 1e9:.2f} GB left: {DaysToFull:.1f} days",
        "LogBytes",
    ),
    _Rule(
        advice.DISK_NEARLY_FULL,
        "capacity",
        _disk_nearly_full,
        _BROKER,
        "{free * 100:.1f} % of its disks is left, {DiskUsableBytes / 1e9:.2f} of"
        " {DiskTotalBytes / 1e9:.2f} GB",
        "LogBytes",
    ),
    _Rule(
        advice.GROWING_LAG,
        "lag",
        partial(_lagging, status="WARN"),
        _GROUP,
        "members commit, and fall behind all the same, in {partitions:d} partitions, by"
        " {records:d} records in all",
        "bytes",
    ),
    _Rule(
        advice.STALLED_GROUP,
        "lag",
        partial(_lagging, status="STALL"),
        _GROUP,
        "nothing was committed although there are records, in {partitions:d} partitions,"
        " {records:d} records in all",
        "bytes",
    ),
    _Rule(
        advice.LAG,
        "lag",
        partial(_lagging, status="UNKNOWN"),
        _GROUP,
        "{records:d} records wait in {partitions:d} partitions"
        "{if(seconds is null, '', format_string(', the oldest for %d s', bigint(seconds))):s}",
        "bytes",
    ),
)
