"""The stream reader: what each batch reads, and how far behind it is.

Tests of cluster_state, topics: test_plan.py
"""
