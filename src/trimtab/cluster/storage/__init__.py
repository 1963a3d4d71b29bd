"""A partition's log on disk, in Kafka's formats, and the disk interface below it.

Tests of batch_file, indexed_file: test_segment.py
Tests of log_appending, log_changes, log_reading: test_log.py
Tests of open_transactions, transaction_index: test_log_transactions.py
Tests of properties: test_identity.py
Tests of segment_recovery: test_log_recovery.py
Tests of storage: tests/unit/sim/test_disk.py
"""
