"""Reading ranges of offsets into Arrow, and the batch reader.

Tests of column_names: test_columns.py
"""
