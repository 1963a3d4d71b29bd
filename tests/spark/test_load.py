"""The load tables, from frames small enough to check by hand.

Long because the tables are computed from the same frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from trimtab.balance.advice import Thresholds
from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, restamp
from trimtab.spark.load import snapshots
from trimtab.spark.load.brokers import broker_capacity
from trimtab.spark.load.groups import group_lag
from trimtab.spark.load.inputs import BATCHES, KEY_HASHES, KEYS, PARTITIONS, RECORDS
from trimtab.spark.load.keys import hot_keys, key_sketches
from trimtab.spark.load.log_segments import read_segments
from trimtab.spark.load.partitions import partition_load, roll_up, share_by
from trimtab.spark.load.racks import CLIENTS, rack_traffic
from trimtab.spark.load.repartitioning import what_if, what_if_partitions
from trimtab.spark.load.rules import findings
from trimtab.spark.load.skew import topic_skew
from trimtab.spark.load.writing import append, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEVEL, TILTED, IDLE = "level", "tilted", "idle"
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# topic, partition, offset, time, place in its batch, bytes of the batch, key and value bytes
ROWS = [
    (LEVEL, 0, 0, at(0), 0, 100, None, 10),
    (LEVEL, 0, 1, at(70), 1, 100, None, 10),
    (LEVEL, 0, 2, at(70), 0, 50, 3, 10),
    (LEVEL, 1, 0, at(0), 0, 150, None, 10),
    (TILTED, 0, 7, at(0), 0, 900, 1, None),  # offsets 5 and 6 are gone, as after compaction
    (TILTED, 0, 8, at(0), 1, 900, 1, 0),
    (TILTED, 2, 0, at(0), 0, 300, 1, 5),
    ("stranger", 0, 0, at(0), 0, 1, None, None),
]
PLACES = [
    (topic, partition, leader, rack)
    for topic in (LEVEL, TILTED, IDLE)
    for partition, leader, rack in [(0, 10, "a"), (1, 11, "b"), (2, 12, "a")]
    if topic != LEVEL or partition < 2
]


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in (frame.select(*columns) if columns else frame).collect()]


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    # Two frame partitions cut batches in the middle, as a split of a range of offsets does.
    return spark.createDataFrame(ROWS, RECORDS).repartition(2).cache()


@pytest.fixture(scope="module")
def partitions(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(PLACES, PARTITIONS)


@pytest.fixture(scope="module")
def table(records: DataFrame, partitions: DataFrame) -> DataFrame:
    return partition_load(records, partitions).cache()


@pytest.mark.kip(794)
def test_partition_load_is_the_table_of_kip_794(table: DataFrame) -> None:
    kip = ("TotalBatches", "TotalBytes", "TotalRecords", "BytesPerBatch", "RecordsPerBatch")
    assert rows_of(table, "topic", "partition", "leader", "rack", *kip, "ShareOfBytes") == [
        (IDLE, 0, 10, "a", 0, 0, 0, None, None, None),
        (IDLE, 1, 11, "b", 0, 0, 0, None, None, None),
        (IDLE, 2, 12, "a", 0, 0, 0, None, None, None),
        (LEVEL, 0, 10, "a", 2, 150, 3, 75.0, 1.5, 0.5),
        (LEVEL, 1, 11, "b", 1, 150, 1, 150.0, 1.0, 0.5),
        (TILTED, 0, 10, "a", 1, 900, 2, 900.0, 2.0, 0.75),
        (TILTED, 1, 11, "b", 0, 0, 0, None, None, 0.0),
        (TILTED, 2, 12, "a", 1, 300, 1, 300.0, 1.0, 0.25),
    ]
    more = ("partition", "RawBytes", "NullKeyRecords", "FirstOffset", "LastOffset")
    assert rows_of(table.filter(f"topic = '{TILTED}'"), *more) == [
        (0, 2, 0, 7, 8),
        (1, None, None, None, None),
        (2, 6, 0, 0, 0),
    ]


def test_windows_part_what_they_put_together_again(
    records: DataFrame, partitions: DataFrame, table: DataFrame
) -> None:
    windows = partition_load(records, partitions, window="1 minute")
    sums = ("TotalBatches", "TotalBytes", "TotalRecords", "RawBytes", "NullKeyRecords")
    level = windows.filter(f"topic = '{LEVEL}'")
    # The batch of 100 bytes has its second record in the next window, and counts in its first.
    assert rows_of(level, "window.start", "partition", *sums) == [
        (at(0).replace(tzinfo=None), 0, 1, 100, 1, 10, 1),
        (at(0).replace(tzinfo=None), 1, 1, 150, 1, 10, 1),
        (at(60).replace(tzinfo=None), 0, 1, 50, 2, 23, 1),
    ]
    assert "ShareOfBytes" not in windows.columns
    # Every column, but for partitions without a record.
    together = roll_up(windows)
    assert rows_of(together) == rows_of(table.filter("TotalRecords > 0"))
    hours = roll_up(windows, "1 hour")
    assert rows_of(hours.drop("window")) == rows_of(together.drop("ShareOfBytes"))


def test_batches_and_records_give_the_same_table(
    spark: SparkSession, records: DataFrame, partitions: DataFrame, table: DataFrame
) -> None:
    batches = spark.createDataFrame(
        [
            (LEVEL, 0, 0, 1, at(0), 100, 2, False),
            (LEVEL, 0, 2, 2, at(70), 50, 1, False),
            (LEVEL, 1, 0, 0, at(0), 150, 1, False),
            (LEVEL, 1, 1, 1, at(0), 78, 1, True),
            (TILTED, 0, 7, 8, at(0), 900, 2, False),
            (TILTED, 2, 0, 0, at(0), 300, 1, False),
        ],
        BATCHES,
    )
    from_batches = partition_load(batches, partitions)
    shared = [name for name in table.columns if not name.startswith(("Raw", "Null", "Share"))]
    expected = rows_of(table, *shared)
    found = rows_of(from_batches, *shared)
    marker = shared.index("TotalBytes"), shared.index("LastOffset"), shared.index("BytesPerBatch")
    for row, other in zip(found, expected, strict=True):
        if row[:2] != (LEVEL, 1):
            assert row == other
        else:  # a transaction marker takes bytes and an offset, and is no record
            assert [row[place] for place in marker] == [150 + 78, 1, 228.0]
            assert [value for place, value in enumerate(row) if place not in marker] == [
                value for place, value in enumerate(other) if place not in marker
            ]


def test_skew_counts_empty_partitions(
    records: DataFrame, partitions: DataFrame, table: DataFrame
) -> None:
    skew = {row.topic: row for row in topic_skew(table).collect()}
    level, tilted, idle = skew[LEVEL], skew[TILTED], skew[IDLE]
    assert (level.MaxOverMean, level.CoefficientOfVariation, level.Gini) == (1.0, 0.0, 0.0)
    assert level.NullKeyShare == 0.75
    assert (tilted.Partitions, tilted.TotalBytes, tilted.TotalRecords) == (3, 1200, 3)
    assert tilted.MaxOverMean == 900 / 400
    assert tilted.CoefficientOfVariation == pytest.approx((140_000**0.5) / 400)
    # Of 0, 300, 900: half the mean difference of two, over the mean.
    assert tilted.Gini == pytest.approx((300 + 900 + 600) * 2 / 9 / (2 * 400))
    assert (tilted.TopPartition, tilted.TopShare, tilted.NullKeyShare) == (0, 0.75, 0.0)
    assert idle.Partitions == 3
    assert all(idle[name] is None for name in ("MaxOverMean", "Gini", "TopPartition", "TopShare"))

    windows = partition_load(records, partitions, window="1 minute")
    first = topic_skew(windows, partitions).filter(f"topic = '{TILTED}'").collect()[0]
    for name in ("Partitions", "MaxOverMean", "CoefficientOfVariation", "Gini", "TopShare"):
        assert first[name] == pytest.approx(tilted[name])
    assert first.window.end - first.window.start == timedelta(minutes=1)


def test_shares_by_broker_and_rack(table: DataFrame) -> None:
    by_leader = share_by(table, "leader").filter(f"topic = '{TILTED}'")
    assert rows_of(by_leader) == [
        (TILTED, 10, 900, 2, 0.75),
        (TILTED, 11, 0, 0, 0.0),
        (TILTED, 12, 300, 1, 0.25),
    ]
    by_rack = share_by(table, "rack").filter(f"topic = '{TILTED}'")
    assert rows_of(by_rack) == [(TILTED, "a", 1200, 3, 1.0), (TILTED, "b", 0, 0, 0.0)]


def test_batches_of_a_segment(spark: SparkSession, tmp_path: Path) -> None:
    log = bytearray()
    for offset, attributes in enumerate((0, LOG_APPEND_TIME, 0x40, TRANSACTIONAL | CONTROL | 4)):
        builder = BatchBuilder(1 << 16)
        for time in (1000, 5000):
            assert builder.append(time, None, b"v", ())
        batch = bytearray(builder.build(producer_id=offset))
        restamp(batch, 0, 10 * offset, 3)
        batch[22] |= attributes
        log += batch
    (tmp_path / "t-5").mkdir()
    (tmp_path / "t-5" / f"{0:020d}.log").write_bytes(log)
    batches = read_segments(spark, [str(tmp_path)]).orderBy("baseOffset")
    size = len(log) // 4
    # The first record's time; the batch's where the broker set it, or compaction overwrote it.
    seconds = "cast(timestamp as long)"
    assert [
        tuple(row)
        for row in batches.selectExpr(
            "topic",
            "partition",
            "baseOffset",
            "lastOffset",
            seconds,
            "batchBytes",
            "records",
            "isControl",
            "codec",
            "producerId",
            "leaderEpoch",
            "isTransactional",
            "segment",
            "cast(maxTimestamp as long)",
        ).collect()
    ] == [
        ("t", 5, 0, 1, 1, size, 2, False, "none", 0, 3, False, 0, 5),
        ("t", 5, 10, 11, 5, size, 2, False, "none", 1, 3, False, 0, 5),
        ("t", 5, 20, 21, 5, size, 2, False, "none", 2, 3, False, 0, 5),
        ("t", 5, 30, 31, 1, size, 2, True, "zstd", 3, 3, True, 0, 5),
    ]
    kinds = {field.name: field.dataType for field in batches.schema}
    wanted = spark.createDataFrame([], BATCHES).schema
    assert {field.name: field.dataType for field in wanted}.items() <= kinds.items()
    assert read_segments(spark, [str(tmp_path)], topics=["other"]).count() == 0


# -- keys

KEYED = [
    (f"t{topic}", key % 3, offset, at(offset % 2 * 60), 0, 70, 2, 10, b"k%d" % key)
    for topic in range(2)
    for offset, key in enumerate([0] * 50 + [1] * 30 + [2] * 9 + list(range(3, 14)))
]


@pytest.fixture(scope="module")
def keyed(spark: SparkSession) -> DataFrame:
    nulls = [("t0", 0, 1000 + n, at(0), 0, 70, None, 10, None) for n in range(25)]
    return spark.createDataFrame([*KEYED, *nulls], KEYS).repartition(3).cache()


def test_hot_keys_of_every_topic(keyed: DataFrame) -> None:
    hot = hot_keys(key_sketches(keyed, counters=20), top=2)
    assert rows_of(hot) == [
        ("t0", 1, b"k0", 0, 50, 50, 600, 50 / 125),
        ("t0", 2, b"k1", 1, 30, 30, 360, 30 / 125),
        ("t1", 1, b"k0", 0, 50, 50, 600, 0.5),
        ("t1", 2, b"k1", 1, 30, 30, 360, 0.3),
    ]
    # Few counters: what was forgotten lies within the bounds.
    rough = hot_keys(key_sketches(keyed, counters=4), top=1).collect()
    for row in rough:
        assert row.key == b"k0"
        assert row.Records <= 50 <= row.MostRecords


def test_hot_keys_by_window_and_by_hash(spark: SparkSession, keyed: DataFrame) -> None:
    hot = hot_keys(key_sketches(keyed, window="1 minute"), top=1)
    found = rows_of(hot.filter("topic = 't1'"), "window.start", "key", "Records")
    assert found == [(at(n).replace(tzinfo=None), b"k0", 25) for n in (0, 60)]
    hashed = spark.createDataFrame([(*row[:-1], 41 + row[1]) for row in KEYED], KEY_HASHES)
    by_hash = hot_keys(key_sketches(hashed), top=1)
    assert rows_of(by_hash.filter("topic = 't0'"), "keyHash", "Records") == [(41, 54)]


def signed(key: bytes) -> int:
    number = murmur2(key)
    return number - (number >> 31 << 32)


def test_what_if_places_keys_as_the_producer_does(spark: SparkSession) -> None:
    keys = [b"key %d" % number for number in range(60)]
    rows: list[tuple[Any, ...]] = [
        ("t", partition_for_key(key, 4), number, at(0), 0, 80, len(key), number, signed(key))
        for number, key in enumerate(keys)
    ]
    rows += [("t", 1, 100 + n, at(0), 0, 80, None, 7, None) for n in range(5)]
    # A key of which a record lies elsewhere counts as one that moves, once.
    stray = next(key for key in keys if partition_for_key(key, 4) == 0)
    rows.append(("t", 3, 200, at(0), 0, 80, len(stray), 0, signed(stray)))
    frame = spark.createDataFrame(rows, KEY_HASHES)
    placed = {
        (row.NewPartitions, row.partition): row
        for row in what_if_partitions(frame, [4, 7, 4]).collect()
    }
    assert {count for count, _ in placed} == {4, 7}
    everything = [*keys, stray]
    for count in (4, 7):
        for partition in range(count):
            there = [key for key in everything if partition_for_key(key, count) == partition]
            row = placed.get((count, partition))
            assert (row.TotalRecords if row else 0) == len(there)
            assert (row.Keys if row else 0) == len(set(there))
        nulls = placed[count, None]
        assert (nulls.TotalRecords, nulls.RawBytes, nulls.Keys, nulls.MovedKeys) == (5, 35, 0, 0)
    assert sum(row.MovedKeys for (count, _), row in placed.items() if count == 4) == 1
    moved = {key for key in keys if partition_for_key(key, 4) != partition_for_key(key, 7)}
    assert sum(row.MovedKeys for (count, _), row in placed.items() if count == 7) == len(
        moved | ({stray} if partition_for_key(stray, 7) != 3 else set())
    )

    four, seven = what_if(frame, [4, 7]).collect()
    assert (four.NewPartitions, four.Keys, four.MovedKeys, four.MovedRecords) == (4, 60, 1, 1)
    assert (four.KeyedRecords, four.NullKeyRecords, four.NewReplicas) == (61, 5, None)
    octets = [0] * 7
    for number, key in enumerate(keys):
        octets[partition_for_key(key, 7)] += len(key) + number
    octets[partition_for_key(stray, 7)] += len(stray)
    assert seven.MaxOverMean == pytest.approx(max(octets) / (sum(octets) / 7))
    assert seven.HottestKeyShare == pytest.approx((len(keys[-1]) + 59) / sum(octets))


def test_what_if_says_whether_the_limits_leave_room(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("t", 0, 0, at(0), 0, 80, 1, 1, 5)], KEY_HASHES)
    partitions = spark.createDataFrame(
        [(at(0), "t", n, 1, "a", [1, 2], ["a", "b"], [1, 2]) for n in range(2)],
        snapshots.PARTITIONS,
    )

    def fits(limits: list[int | None], cluster: int | None) -> list[tuple[Any, ...]]:
        brokers = [
            (at(0), number, "h", 1, "a", limit, cluster) for number, limit in enumerate(limits, 1)
        ]
        table = what_if(
            frame, [1, 2, 4], partitions, spark.createDataFrame(brokers, snapshots.BROKERS)
        )
        return rows_of(table, "NewReplicas", "FreeReplicas", "Fits")

    # Two partitions with two replicas lie on brokers 1 and 2.
    assert fits([3, 5], None) == [(-2, 4, False), (0, 4, True), (4, 4, True)]
    assert fits([3, 4], None)[2] == (4, 3, False)
    assert fits([1, None], 7)[2] == (4, 3, False)
    assert fits([1, None], None)[2] == (4, None, True)
    assert fits([1, 1], None)[1] == (0, 0, True)


# -- racks, brokers, groups


def test_rack_traffic_by_hand(spark: SparkSession) -> None:
    partitions = spark.createDataFrame(
        [
            (at(0), "t", 0, 1, "a", [1, 2], ["a", "b"], [1, 2]),
            (at(0), "t", 1, 2, "b", [2, 3], ["b", "c"], [2, 3]),
            (at(0), "u", 0, 1, "a", [1], ["a"], [1]),
        ],
        snapshots.PARTITIONS,
    )
    records = [
        ("t", 0, 0, at(0), 0, 3_000_000_00, None, 9),
        ("t", 1, 0, at(0), 0, 1_000_000_00, None, 9),
        ("t", 1, 1, at(0), 1, 1_000_000_00, 4, 9),
        ("u", 0, 0, at(0), 0, 5_000_000_00, None, 9),
    ]
    table = partition_load(spark.createDataFrame(records, RECORDS), partitions)
    clients = [
        ("t", "produce", "a", 1.0, True),  # rack-aware: partition 0 alone
        ("t", "produce", "b", 2.0, False),  # evenly to both
        ("t", "consume", "c", 1.0, True),
        ("t", "consume", "b", 0.5, False),
    ]
    traffic = rack_traffic(
        table, partitions, spark.createDataFrame(clients, CLIENTS), cost_per_gb=10.0
    )
    found = {
        (row.topic, row.kind, row.fromRack, row.toRack): (
            row.Bytes / 1e8,
            row.IsCrossRack,
            row.Cost,
            row.SavedBy,
            row.SavableBytes / 1e8,
        )
        for row in traffic.collect()
    }
    approx = {key: pytest.approx(value) for key, value in found.items()}
    assert approx == {
        # Partition 0 took 3: half from a, which sends all of its 1 there, half from b.
        ("t", "produce", "a", "a"): (1.5, False, 0.0, None, 0.0),
        ("t", "produce", "b", "a"): (1.5, True, 1.5, "KIP-1123", 1.5),
        ("t", "produce", "b", "b"): (1.0, False, 0.0, None, 0.0),
        ("t", "replicate", "a", "b"): (3.0, True, 3.0, None, 0.0),
        ("t", "replicate", "b", "c"): (1.0, True, 1.0, None, 0.0),
        # c reads partition 1 from its own replica, partition 0 from the leader: there is no other.
        ("t", "consume", "a", "c"): (3.0, True, 3.0, None, 0.0),
        ("t", "consume", "c", "c"): (1.0, False, 0.0, None, 0.0),
        ("t", "consume", "a", "b"): (1.5, True, 1.5, "KIP-392", 1.5),
        ("t", "consume", "b", "b"): (0.5, False, 0.0, None, 0.0),
        # Nobody said who produces to u.
        ("u", "produce", None, "a"): (5.0, None, 0.0, None, 0.0),
    }


def test_rack_traffic_keeps_records_with_keys_where_they_are(spark: SparkSession) -> None:
    partitions = spark.createDataFrame(
        [(at(0), "t", n, n, rack, [n], [rack], [n]) for n, rack in enumerate("ab")],
        snapshots.PARTITIONS,
    )
    records = [("t", 0, n, at(0), n, 400, None if n else 1, 9) for n in range(4)]
    table = partition_load(spark.createDataFrame(records, RECORDS), partitions)
    clients = spark.createDataFrame([("t", "produce", "b", 1.0, False)], CLIENTS)
    (row,) = rack_traffic(table, partitions, clients).collect()
    assert (row.fromRack, row.toRack, row.Bytes, row.SavableBytes) == ("b", "a", 400, 300)


def test_broker_capacity_grows_from_the_first_snapshot_to_the_last(spark: SparkSession) -> None:
    day = 86_400
    times = [0, day / 2, 2 * day]
    brokers: list[tuple[Any, ...]] = [
        (at(time), broker, "h", 1, "abc"[broker], 10 if broker < 2 else None, None)
        for time in times
        for broker in range(3)
    ]
    brokers.append((at(0), 9, "h", 1, None, None, None))  # it has left since
    sizes = {0: [100, 0, 500], 1: [70, 70, 50]}
    replicas = [
        (at(time), broker, f"/d{half}", "t", half, size[step] // 2, 0, False)
        for broker, size in sizes.items()
        for step, time in enumerate(times)
        for half in range(2)
    ]
    # Broker 0 has two volumes: /d1 and /d2 lie on one of them, and were looked at in turn.
    rooms = {"/d0": 400, "/d1": 300, "/d2": 301}
    directories = [
        (at(time), 0, name, 1000, room) for time in times for name, room in rooms.items()
    ]
    directories += [(at(time), 1, "/d0", -1, -1) for time in times]
    partitions = [
        (at(time), "t", number, number, "a", [0, 1], ["a", "b"], [0, 1])
        for time in times
        for number in range(2)
    ]
    table = broker_capacity(
        spark.createDataFrame(brokers, snapshots.BROKERS),
        spark.createDataFrame(replicas, snapshots.REPLICAS),
        spark.createDataFrame(directories, snapshots.DIRECTORIES),
        spark.createDataFrame(partitions, snapshots.PARTITIONS),
    )
    assert rows_of(table.drop("takenAt")) == [
        (0, "a", 2, 1, 10, 0.2, 500, 2000, 700, 200.0, 3.5),
        (1, "b", 2, 1, 10, 0.2, 50, None, None, -10.0, None),
        (2, "c", 0, 0, None, None, 0, None, None, 0.0, None),
    ]


def test_growth_needs_an_hour_and_volumes_are_told_apart_by_size_and_room(
    spark: SparkSession,
) -> None:
    tera = 10**12
    volumes = [
        (0, tera, 500),
        (0, tera, 500),
        (0, tera, tera // 1000 + 501),  # the third is another one
        (1, tera, 500),
        (1, tera + 1, 500),
        (2, tera, 7),
    ]

    def look(seconds: float) -> tuple[int | None, ...]:
        times = (0.0, seconds)
        table = broker_capacity(
            spark.createDataFrame(
                [(at(t), b, "h", 1, None, None, None) for t in times for b in range(3)],
                snapshots.BROKERS,
            ),
            spark.createDataFrame(
                [(at(t), 0, "/d", "t", 0, int(t), 0, False) for t in times], snapshots.REPLICAS
            ),
            spark.createDataFrame(
                [
                    (at(t), broker, f"/d{n}", total, room)
                    for t in times
                    for n, (broker, total, room) in enumerate(volumes)
                ],
                snapshots.DIRECTORIES,
            ),
            spark.createDataFrame([], snapshots.PARTITIONS),
        ).collect()
        assert [row.DiskTotalBytes for row in table] == [2 * tera, 2 * tera + 1, tera]
        return tuple(row.BytesPerDay for row in table)

    assert look(3599) == (None, None, None)
    assert look(3600) == (86_400, 0, 0)


def test_group_lag_and_its_status(spark: SparkSession) -> None:
    histories: dict[str, list[tuple[int, int]]] = {  # committed, latest
        "level": [(5, 9), (9, 9), (9, 12)],
        "behind": [(5, 9), (6, 13), (7, 20)],
        "catching up": [(5, 30), (9, 31), (12, 32)],
        "stalled": [(5, 9), (5, 13), (5, 20)],
        "rewound": [(8, 9), (8, 13), (3, 20)],
    }
    committed, offsets = [], []
    for topic, history in histories.items():
        for step, (commit, latest) in enumerate(history):
            committed.append((at(60 * step), "g", topic, 0, commit))
            offsets.append((at(60 * step), topic, 0, 0, latest))
    committed.append((at(120), "new", "level", 0, 2))
    committed.append((at(0), "left", "level", 0, 1))
    # Twelve records of 10 bytes, six in each of two windows.
    records = [("level", 0, n, at(10 * n), 0, 10, None, 1) for n in range(12)]
    windows = partition_load(spark.createDataFrame(records, RECORDS), window="1 minute")
    table = group_lag(
        spark.createDataFrame(committed, snapshots.GROUP_OFFSETS),
        spark.createDataFrame(offsets, snapshots.OFFSETS),
        windows,
    )
    found = {(row.group, row.topic): row for row in table.collect()}
    assert {key: row.Status for key, row in found.items()} == {
        ("g", "level"): "OK",
        ("g", "behind"): "WARN",
        ("g", "catching up"): "OK",
        ("g", "stalled"): "STALL",
        ("g", "rewound"): "REWIND",
        ("new", "level"): "UNKNOWN",
    }
    level = found["g", "level"]
    assert (level.Committed, level.Latest, level.LagRecords) == (9, 12, 3)
    # Half of the second window; its records from offset 9 on were written 30 s ago.
    assert (level.LagBytes, level.LagSeconds) == (30.0, 30.0)
    new = found["new", "level"]
    assert (new.LagRecords, new.LagBytes, new.LagSeconds) == (10, 100.0, 100.0)
    assert (found["g", "stalled"].LagBytes, found["g", "stalled"].LagSeconds) == (None, None)


def test_findings_name_rule_evidence_and_action(
    spark: SparkSession, table: DataFrame, keyed: DataFrame
) -> None:
    # As if there were a thousand times as many records: of three chance makes anything.
    skew = topic_skew(table).withColumn("TotalRecords", f.col("TotalRecords") * 1000)
    keys = hot_keys(key_sketches(keyed))
    limits = Thresholds(min_bytes=1, batch_bytes=80, key_records=9, leader_over_mean=1.1)
    found = findings(load=table, skew=skew, thresholds=limits)
    rows = {(row.rule, row.subject): row for row in found.collect()}
    assert set(rows) == {("uneven-by-key", TILTED), ("uneven-leaders", "broker 10")}
    assert rows["uneven-by-key", TILTED].evidence == (
        "partition 0 takes 75 % of the bytes, 2.3 times the mean of 3 partitions"
    )
    assert rows["uneven-leaders", "broker 10"].evidence == (
        "the partitions that it leads took 2.1 times the bytes of the mean of 3 brokers"
    )
    # Without the number of partitions a tenth of the records is hot.
    hot = findings(keys=keys, thresholds=limits).groupBy("rule", "subject").count()
    assert sorted(rows_of(hot)) == [("hot-key", "t0", 2), ("hot-key", "t1", 2)]
    with pytest.raises(UsageError, match="at least one table"):
        findings()


SKEW = (
    "topic string, Partitions long, TotalBytes long, TotalRecords long, MaxOverMean double,"
    " TopPartition int, TopShare double, NullKeyShare double"
)


def test_chance_is_no_skew_and_skew_is_no_chance(spark: SparkSession) -> None:
    random = Random(3)
    rows: list[tuple[Any, ...]] = []

    def place(
        name: str, counts: Sequence[int], size: int, each: int, null_keys: float | None
    ) -> None:
        records = sum(counts) * each
        over_mean = max(counts) * len(counts) / sum(counts)
        row = (name, len(counts), records * size, records, over_mean, 0, 0.0, null_keys)
        rows.append(row)

    for partitions in (1, 2, 3, 33, 1000, 10_000):
        for mean in (0.1, 1, 10, 100):
            if not 1000 <= partitions * mean * 20 <= 2_000_000:
                continue
            for _ in range(10 if partitions < 1000 else 2):
                counts = Counter(random.choices(range(partitions), k=round(partitions * mean)))
                sizes = [counts[number] for number in range(partitions)]
                place("by key", sizes, 20_000, 1, 0.0)
                place("without keys", sizes, 164, 100, 1.0)  # runs of 16 KB
                place("segments", sizes, 164, 100, None)
    assert len(rows) > 100
    for partitions in (2, 3, 33, 1000):
        for null_keys in (0.0, 1.0):
            tilted = [100] * partitions
            tilted[1] = 100 * (1 + 2 * partitions)
            place(f"tilted {partitions} {null_keys}", tilted, 20_000, 1, null_keys)
            half = [100] * partitions
            half[0] = 140
            place("level enough", half, 20_000, 1, null_keys)
    found = findings(skew=spark.createDataFrame(rows, SKEW)).collect()
    assert {row.subject for row in found} == {
        f"tilted {partitions} {null_keys}"
        for partitions in (2, 3, 33, 1000)
        for null_keys in (0.0, 1.0)
    }


def test_a_key_is_hot_that_fills_its_partition(spark: SparkSession) -> None:
    big = 10_000_000
    topics = {"t1": 1, "t2": 2, "t3": 3, "t12": 12, "t1000": 1000}
    skew = [(name, count, big, 9999, 1.0, 0, 0.0, 0.0) for name, count in topics.items()]
    skew.append(("tiny", 1000, 99, 9999, 1.0, 0, 0.0, 0.0))
    shares = {"t1": 1.0, "t2": 0.6, "t3": 0.6, "t12": 0.11, "t1000": 0.002, "tiny": 0.9}
    keys = [(name, b"k", 0, 500, share) for name, share in shares.items()]
    keys += [("t2", b"l", 0, 500, 0.45), ("t12", b"l", 0, 99, 0.9), ("t1000", b"l", 0, 500, 0.0009)]
    found = findings(
        skew=spark.createDataFrame(skew, SKEW),
        keys=spark.createDataFrame(
            [(*each, 1000) for each in keys],
            "topic string, key binary, Partition int, Records long, ShareOfRecords double,"
            " Bytes long",
        ),
    ).collect()
    assert [(row.rule, row.subject) for row in found] == [
        ("hot-key", "t1000"),
        ("hot-key", "t12"),
        ("hot-key", "t2"),
        ("hot-key", "t3"),
    ]


def test_brokers_that_lead_nothing_count_and_one_large_partition_does_not(
    spark: SparkSession,
) -> None:
    schema = "topic string, leader int, TotalBytes long, TotalBatches long, TotalRecords long"
    big = 10_000_000
    even = spark.createDataFrame([("t", 1, big, 9, 9) for _ in range(4)], schema)
    capacity = spark.createDataFrame(
        [(number, 1, None, None, None, None, None, None, 0) for number in (1, 2, 3)], CAPACITY
    )
    assert findings(load=even).collect() == []
    (row,) = findings(load=even, capacity=capacity).collect()
    assert row.evidence == (
        "the partitions that it leads took 3.0 times the bytes of the mean of 3 brokers"
    )
    # Moving cannot make that one smaller.
    one = spark.createDataFrame([("t", 1, 9 * big, 9, 9), ("t", 1, big, 9, 9)], schema)
    assert findings(load=one, capacity=capacity).collect() == []


CAPACITY = (
    "broker int, Replicas long, MaxReplicas long, UsedShare double, BytesPerDay double,"
    " DiskUsableBytes long, DiskTotalBytes long, DaysToFull double, LogBytes long"
)


def test_every_rule_can_be_broken(spark: SparkSession) -> None:
    big = 10_000_000

    def frame(schema: str, *rows: tuple[Any, ...]) -> DataFrame:
        return spark.createDataFrame(list(rows), schema)

    found = findings(
        load=frame(
            "topic string, leader int, TotalBytes long, TotalBatches long, TotalRecords long",
            ("small", 1, 5 * big, big, big),
            ("small", 1, 4 * big, big, big),
            ("large", 2, big, 1000, 1000),
            ("small", -1, 9 * big, big, big),
        ),
        skew=frame(
            SKEW,
            ("no keys", 4, big, 99999, 3.0, 1, 0.75, 0.9),
            ("keys", 4, big, 99999, 3.0, 1, 0.75, 0.1),
            ("segments", 4, big, 99999, 3.0, 1, 0.75, None),
            ("level", 4, big, 99999, 1.5, 1, 0.4, 0.9),
            ("tiny", 4, 99, 99999, 4.0, 1, 1.0, 0.9),
            ("text", 12, big, 99999, 1.0, 1, 0.2, 0.1),
            ("octets", 12, big, 99999, 1.0, 1, 0.2, 0.1),
        ),
        keys=frame(
            "topic string, key binary, Partition int, Records long, ShareOfRecords double,"
            " Bytes long",
            ("text", b"gr\xc3\xb6\xc3\x9fe", 3, 500, 0.2, 20_000_000),
            ("octets", b"\xff\x00", 3, 500, 0.2, 5000),
            ("text", b"rare", 3, 500, 0.05, 1000),
        ),
        racks=frame(
            "topic string, kind string, SavableBytes double, SavableCost double",
            ("t", "produce", 2e9, 0.04),
            ("t", "consume", 1e9, 0.02),
            ("t", "replicate", 0.0, 0.0),
        ),
        capacity=frame(
            CAPACITY,
            (1, 8, 10, 0.8, 1e9, 3_000_000_000, 9_000_000_000, 3.0, 6_000_000_000),
            (2, 7, 10, 0.7, 1e9, 90_000_000_000, 99_000_000_000, 90.0, 9_000_000_000),
            (3, 7, None, None, -1.0, 5, 50, None, 45),
            (4, 7, None, None, None, 4_900_000_000, 50_000_000_000, None, 45_000_000_000),
            (5, 7, None, None, None, None, None, None, 0),
        ),
        lag=frame(
            "group string, topic string, LagRecords long, LagSeconds double, Status string,"
            " LagBytes double",
            ("g", "t", 400, None, "WARN", None),
            ("g", "t", 600, 60.0, "WARN", 6e9),
            ("g", "t", 800, 59.0, "WARN", 8e9),  # members are about to commit
            ("h", "t", 5, 61.0, "STALL", 50.0),
            ("i", "t", 5, None, "OK", None),
            ("j", "t", 999, None, "WARN", None),
            ("k", "t", 9999, 3.0, "STALL", 9e9),
            ("l", "t", 2000, 61.5, "UNKNOWN", 1e9),
            ("m", "t", 1000, None, "UNKNOWN", None),
            ("n", "t", 999, None, "UNKNOWN", None),
        ),
    ).collect()
    assert [(row.severity, row.rule, row.subject) for row in found] == [
        (1, "disk-nearly-full", "broker 4"),  # of 45 GB
        (1, "disk-full-soon", "broker 1"),  # of 6 GB
        (1, "few-partitions-left", "broker 1"),
        (1, "stalled-group", "group h, topic t"),
        (2, "growing-lag", "group g, topic t"),  # 6 GB
        (2, "savable-rack-traffic", "t"),  # 2 GB
        (2, "savable-rack-traffic", "t"),  # 1 GB
        (2, "uneven-leaders", "broker 1"),  # 70 MB more than the mean
        (2, "hot-key", "text"),  # 20 MB
        (2, "uneven-by-key", "keys"),  # 5 MB more than the mean
        (2, "uneven-by-key", "segments"),
        (2, "uneven-without-keys", "no keys"),
        (2, "hot-key", "octets"),  # 5 KB
        (3, "small-batches", "small"),  # 20 million headers
        (3, "lag", "group l, topic t"),  # 1 GB
        (3, "lag", "group m, topic t"),  # of unknown bytes
    ]
    said = {(row.rule, row.subject): row for row in found}
    assert "key größe has 20 %" in said["hot-key", "text"].evidence
    assert "key 0xFF00 has 20 %" in said["hot-key", "octets"].evidence
    assert "in 2 partitions, by 1000 records" in said["growing-lag", "group g, topic t"].evidence
    assert said["lag", "group l, topic t"].evidence == (
        "2000 records wait in 1 partitions, the oldest for 61 s"
    )
    assert said["lag", "group m, topic t"].evidence == "1000 records wait in 1 partitions"
    assert "3.0 days" in said["disk-full-soon", "broker 1"].evidence
    assert said["disk-nearly-full", "broker 4"].evidence == (
        "9.8 % of its disks is left, 4.90 of 50.00 GB"
    )
    assert all(row.evidence and row.action for row in found)


# -- streams, writing, misuse


def test_a_table_without_rows_leaves_nothing_that_a_reader_could_stumble_over(
    spark: SparkSession, records: DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "load"
    windows = partition_load(records, window="1 minute")
    for empty in (windows.filter("false"), partition_load(records).filter("false")):
        append(empty, str(path))
        assert not path.exists()
    append(windows, str(path))
    append(windows.filter("false"), str(path))
    assert spark.read.parquet(str(path)).count() == windows.count()
    kept = windows.cache()
    append(kept, str(path))
    assert kept.is_cached
    kept.unpersist()


def test_a_stream_closes_its_windows_with_the_same_sums(
    spark: SparkSession, records: DataFrame, partitions: DataFrame, tmp_path: Path
) -> None:
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    # A last record closes the windows before it: the watermark follows the largest timestamp.
    last = spark.createDataFrame([(LEVEL, 0, 9, at(9000), 0, 1, None, 1)], RECORDS)
    records.write.parquet(source)
    last.write.mode("append").parquet(source)
    stream = spark.readStream.schema(RECORDS).parquet(source)
    tables = partition_load(stream, partitions, window="1 minute", watermark="1 minute")
    for _ in range(2):  # started again, nothing is counted twice
        query = start(tables, out, str(tmp_path / "checkpoint"), trigger={"availableNow": True})
        query.awaitTermination()
    written = spark.read.parquet(out).drop("day")
    batch = partition_load(records, partitions, window="1 minute")
    order = ("window", "topic", "partition")
    assert rows_of(written.orderBy(*order)) == rows_of(batch.orderBy(*order))
    assert [path.name for path in Path(out).glob("day=*")] == ["day=2026-11-23"]
    appended = str(tmp_path / "appended")
    for _ in range(2):
        append(batch, appended, format="json")
    assert spark.read.json(appended).count() == 2 * len(rows_of(batch))
    append(topic_skew(batch), str(tmp_path / "skew"))
    assert spark.read.parquet(str(tmp_path / "skew")).drop("day").columns[0] == "window"


def test_streams_of_skew_hours_and_keys(
    spark: SparkSession, keyed: DataFrame, tmp_path: Path
) -> None:
    source = str(tmp_path / "in")
    keyed.write.parquet(source)
    last = spark.createDataFrame([("t0", 0, 9999, at(90_000), 0, 1, None, 1, None)], KEYS)
    last.write.mode("append").parquet(source)
    stream = spark.readStream.schema(KEYS).parquet(source)
    options: dict[str, Any] = {"window": "1 minute", "watermark": "1 minute"}
    minutes = partition_load(stream, **options)
    batch = partition_load(keyed, window="1 minute")
    made: dict[str, tuple[DataFrame, DataFrame]] = {
        "skew": (topic_skew(minutes), topic_skew(batch)),
        "hours": (roll_up(minutes, "1 hour"), roll_up(batch, "1 hour")),
        "keys": (key_sketches(stream, **options), key_sketches(keyed, window="1 minute")),
    }
    for name, (streamed, expected) in made.items():
        out, checkpoint = str(tmp_path / name), str(tmp_path / f"{name} checkpoint")
        start(streamed, out, checkpoint, trigger={"availableNow": True}).awaitTermination()
        written = spark.read.parquet(out).drop("day")
        found = hot_keys(written) if name == "keys" else written
        wanted = hot_keys(expected) if name == "keys" else expected
        assert sorted(rows_of(found)) == sorted(rows_of(wanted)), name
        assert rows_of(wanted)


def test_misuse_is_said_at_once(spark: SparkSession, table: DataFrame, tmp_path: Path) -> None:
    stream = spark.readStream.schema(KEYS).parquet(str(tmp_path))
    with pytest.raises(UsageError, match="needs a window"):
        partition_load(stream)
    with pytest.raises(UsageError, match="needs a window"):
        key_sketches(stream)
    with pytest.raises(UsageError, match="counters=0"):
        key_sketches(table, counters=0)
    with pytest.raises(UsageError, match="records has no column batchBytes, keyBytes"):
        partition_load(
            table.withColumnRenamed("LastOffset", "offset").selectExpr("*", "1 as batchIndex")
        )
    with pytest.raises(UsageError, match="each from 1 on"):
        what_if(table, [0])
    with pytest.raises(UsageError, match="needs a stream"):
        start(table, "x", "y")
