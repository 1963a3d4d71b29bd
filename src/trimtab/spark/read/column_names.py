"""The columns of `format("trimtab")`, by name, as types of Spark SQL.

Apart from `columns.py`, which needs PyArrow: Spark asks for a schema in a process of its own.
"""

from __future__ import annotations

from typing import Final

KAFKA_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
"""The columns of Spark's Kafka source, by their types in Spark SQL."""

HEADER_COLUMNS: Final = {"headers": "array<struct<key:string,value:binary>>"}
"""A record's headers; null if it has none. As Spark's Kafka source with `includeHeaders`."""

BATCH_COLUMNS: Final = {"batchBaseOffset": "bigint", "batchBytes": "int", "batchIndex": "int"}
"""The record batch that a record lies in: its first offset and its size in the log, in bytes; and
the record's place in it, from 0. Every batch has one record with place 0, also after compaction."""

SIZE_COLUMNS: Final = {"keyBytes": "int", "valueBytes": "int"}
"""The sizes of key and value in bytes, null where those are null. Only by a schema that names
them."""

HASH_COLUMNS: Final = {"keyHash": "int"}
"""Murmur2 of the key as Kafka's producer has it, null where the key is null; the partition of a
record with a key is `(keyHash & 0x7fffffff) % partitions`. Only by a schema that names it."""

KNOWN_COLUMNS: Final = KAFKA_COLUMNS | HEADER_COLUMNS | BATCH_COLUMNS | SIZE_COLUMNS | HASH_COLUMNS
"""Every column that a schema may name."""
