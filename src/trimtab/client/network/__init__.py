"""Connections to brokers, who they are, and what they say of the cluster.

Tests of connection: test_connections.py
Tests of coordinator: tests/unit/client/sender/test_transactions.py
Tests of connection_options, jaas, options, refused_options: tests/unit/client/test_options.py
"""
