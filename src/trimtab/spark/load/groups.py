"""The lag of consumer groups in records, bytes and seconds, and whether they catch up.

The status follows Burrow: it has no threshold for the lag, but depends on how lag and committed
offset have changed over the last snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from trimtab.spark.load.inputs import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def group_lag(committed: DataFrame, offsets: DataFrame, load: DataFrame | None = None) -> DataFrame:
    """Each group's lag in each partition at the last snapshot; batch only.

    Args:
        committed: with the columns of `snapshots.GROUP_OFFSETS`, of one or more snapshots.
        offsets: with the columns of `snapshots.OFFSETS`, of the same snapshots.
        load: what `partition_load` returns with a window; needed for bytes and seconds, which are
            as exact as the windows are short.

    Returns:
        group, topic, partition, takenAt, Committed, Latest (offsets), LagRecords (latest minus
        committed offset, at least 0), LagBytes (in the log), LagSeconds (age of the first
        uncommitted record; both null without `load`, or if it does not contain that record; 0
        without lag), Status:

        - "OK": a snapshot has no lag, or the lag has shrunk in between, or has not grown
        - "WARN": the lag grew over the snapshots and never shrank, although offsets were committed
        - "STALL": every snapshot has lag, and no offsets were committed
        - "REWIND": the committed offset has decreased
        - "UNKNOWN": there is lag, and only one snapshot
    """
    require(committed, "committed", "takenAt", "group", "topic", "partition", "committed")
    require(offsets, "offsets", "takenAt", "topic", "partition", "latest")
    each = committed.join(
        offsets.select("takenAt", "topic", "partition", "latest"),
        ["takenAt", "topic", "partition"],
    ).withColumn("lag", f.greatest(f.lit(0).cast("long"), f.col("latest") - f.col("committed")))
    history = each.groupBy("group", "topic", "partition").agg(
        f.sort_array(f.collect_list(f.struct("takenAt", "committed", "latest", "lag"))).alias(
            "past"
        )
    )
    newest = f.element_at("past", -1)
    table = history.select(
        "group",
        "topic",
        "partition",
        newest["takenAt"].alias("takenAt"),
        newest["committed"].alias("Committed"),
        newest["latest"].alias("Latest"),
        newest["lag"].alias("LagRecords"),
        f.expr(_STATUS).alias("Status"),
    )
    last = f.broadcast(table.agg(f.max("takenAt").alias("takenAt")))
    table = table.join(last, "takenAt")
    behind = _behind(table, load)
    keys = ["group", "topic", "partition"]
    return (
        table.join(behind, keys, "left")
        .select(
            *keys,
            "takenAt",
            "Committed",
            "Latest",
            "LagRecords",
            *(
                f.when(f.col("LagRecords") == 0, 0.0).otherwise(f.col(name)).alias(name)
                for name in ("LagBytes", "LagSeconds")
            ),
            "Status",
        )
        .orderBy(*keys)
    )


_STEPS = "transform(slice(past, 2, size(past) - 1), (each, at) -> {})"
_STATUS = f"""
case
  when exists(past, each -> each.lag = 0) then
    if(exists({_STEPS.format("each.committed < past[at].committed")}, back -> back),
       'REWIND', 'OK')
  when size(past) < 2 then 'UNKNOWN'
  when exists({_STEPS.format("each.committed < past[at].committed")}, back -> back) then 'REWIND'
  when element_at(past, -1).committed = past[0].committed then 'STALL'
  when forall({_STEPS.format("each.lag >= past[at].lag")}, grew -> grew)
       and element_at(past, -1).lag > past[0].lag then 'WARN'
  else 'OK'
end
"""


def _behind(table: DataFrame, load: DataFrame | None) -> DataFrame:
    """LagBytes and LagSeconds, if known from the load, by group, topic and partition."""
    keys = ["group", "topic", "partition"]
    if load is None:
        unknown = f.lit(None).cast("double")
        return table.select(*keys, unknown.alias("LagBytes"), unknown.alias("LagSeconds"))
    require(load, "load", "window", "topic", "partition", "FirstOffset", "LastOffset", "TotalBytes")
    windows = load.select("topic", "partition", "window", "FirstOffset", "LastOffset", "TotalBytes")
    offsets = f.col("LastOffset") - f.col("FirstOffset") + 1
    # The uncommitted part of a window, assuming that its records came evenly.
    left = f.greatest(
        f.lit(0.0),
        (f.col("LastOffset") + 1 - f.greatest("Committed", "FirstOffset")) / offsets,
    )
    start = f.col("window.start").cast("double")
    end = f.col("window.end").cast("double")
    written = f.when(f.col("LastOffset") >= f.col("Committed"), start + (end - start) * (1 - left))
    sums = (
        table.filter("LagRecords > 0")
        .join(windows, ["topic", "partition"])
        .groupBy(*keys)
        .agg(
            f.sum(f.col("TotalBytes") * left).alias("bytes"),
            f.min(written).alias("written"),
            f.min("FirstOffset").alias("reachesBack"),
            f.max(f.col("takenAt").cast("double")).alias("now"),
            f.max("Committed").alias("committed"),
        )
    )
    reaches = f.col("reachesBack") <= f.col("committed")
    return sums.select(
        *keys,
        f.when(reaches, f.col("bytes")).alias("LagBytes"),
        f.when(reaches, f.greatest(f.lit(0.0), f.col("now") - f.col("written"))).alias(
            "LagSeconds"
        ),
    )
