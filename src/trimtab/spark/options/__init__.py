"""Options of the source and the sink: read, checked, explained; and load tables' defaults.

Tests of load: tests/spark/test_load.py
"""
