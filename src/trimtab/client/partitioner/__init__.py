"""Partitioners: KIP-480, KIP-794, KIP-1123, hashing of keys, and users' own.

`protocol.py` has the interfaces, `factory.py` creates the partitioner that the options ask for;
`built_in.py` is the default. They decide from a topic's load; nothing here sends, waits or stores a
record.

Tests of partitioning: test_partitioning_cases.py
Tests of protocol: test_built_in.py
"""
