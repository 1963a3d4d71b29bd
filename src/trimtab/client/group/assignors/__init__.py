"""The assignors of classic groups: the leader's choice which member reads which partitions.

They are plain functions of the members' subscriptions and of the topics: without I/O, and with the
same result for the same group in any order. `factory.py` creates them from
`partition.assignment.strategy`.

Tests: tests/property/test_client_assignors.py
"""
