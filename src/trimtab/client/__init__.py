"""The asynchronous clients, and the stages between them and the brokers.

    send ─▶ partitioner ─▶ accumulator ─▶ sender ─▶ network ═▶ broker
    poll ◀─ consumer ◀─ fetcher ◀─ network ◀══ broker

`producer`, `consumer` and `admin` hold the public classes; each folder is one stage. `blocking`
wraps them for programs without an event loop.

Tests of group_offsets: tests/unit/client/admin/test_groups.py
Tests of producer_core, topic_view: test_producer.py
"""
