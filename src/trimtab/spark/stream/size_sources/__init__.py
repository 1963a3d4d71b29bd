"""Sources from which the driver of a stream learns the sizes of unread record batches.

Tests: test_sources.py
"""
