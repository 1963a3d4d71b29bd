"""One broker: from a producer's batches to its partitions' logs, and back to consumers.

    connection ─▶ handler ─▶ partition ─▶ log ─▶ storage
                                 │ (high watermark rises)
    connection ◀─ handler ◀──────┘

A batch is checked by its header and CRC, stamped with offset and leader epoch in place, and
written as it is; no record is opened.

Tests of authorized_operations: test_metadata.py
Tests of coordinator, marker_sender, producer_ids: test_transactions.py
Tests of fetch_reader: test_fetch_slot.py
Tests of fetch_session_cache: test_fetch_session.py
Tests of cluster_view, metadata_replay: test_replicas.py
Tests of purgatory: test_fetch.py
Tests of refused: test_refused_requests.py
"""
