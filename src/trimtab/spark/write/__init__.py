"""The sink: writes rows into topics, at least once or exactly once.

Tests of ledger: tests/spark/test_exactly_once.py
Tests of stream_sink: test_sink.py
"""
