"""Tables of load by partition, key, broker and rack, and findings about it.

    records = spark.read.schema(load.RECORDS).format("trimtab").options(...).load()
    table = load.partition_load(records, partitions, window="1 minute")
    load.append(table, "/data/partition_load")
    load.topic_skew(table, partitions)

Each table is a function from DataFrames to a DataFrame, which collects and caches nothing.
`partition_load`, `roll_up`, `topic_skew`, `key_skew` and `key_sketches` also take streams. The
other tables are computed in a second, small step from tables that were written.

Inputs: records without keys and values (`RECORDS`, `KEYS`, `KEY_HASHES` are schemas to read with),
batches from log segments on disk (`trimtab.spark.load.log_segments`), and snapshots of the
cluster's metadata (`trimtab.spark.load.snapshots`).

Columns that identify a row are in lower case (topic, partition, window); measures are capitalized,
as in KIP-794.

Tests: tests/spark/test_load.py
"""

from trimtab.balance.advice import Thresholds
from trimtab.spark.load.brokers import broker_capacity
from trimtab.spark.load.groups import group_lag
from trimtab.spark.load.inputs import BATCHES, KEY_HASHES, KEYS, PARTITIONS, RECORDS
from trimtab.spark.load.key_spread import key_skew
from trimtab.spark.load.keys import hot_keys, key_sketches
from trimtab.spark.load.partitions import partition_load, roll_up, share_by
from trimtab.spark.load.racks import CLIENTS, rack_traffic
from trimtab.spark.load.repartitioning import what_if, what_if_partitions
from trimtab.spark.load.rules import findings
from trimtab.spark.load.skew import topic_skew
from trimtab.spark.load.writing import append, start
from trimtab.spark.options.load import COST_PER_GB

__all__ = [
    "BATCHES",
    "CLIENTS",
    "COST_PER_GB",
    "KEYS",
    "KEY_HASHES",
    "PARTITIONS",
    "RECORDS",
    "Thresholds",
    "append",
    "broker_capacity",
    "findings",
    "group_lag",
    "hot_keys",
    "key_sketches",
    "key_skew",
    "partition_load",
    "rack_traffic",
    "roll_up",
    "share_by",
    "start",
    "topic_skew",
    "what_if",
    "what_if_partitions",
]
