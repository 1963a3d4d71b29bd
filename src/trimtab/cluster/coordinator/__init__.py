"""The coordinator of groups and of transactions: pure decisions about members, generations,
committed offsets, and the states of transactions.

Tests of assignors, topics: test_load_assignor.py
Tests of consumer_heartbeat: test_consumer_group.py
Tests of consumer_member: test_recorded_group.py
Tests of effects: test_classic_member.py
Tests of room: tests/unit/cluster/broker/test_room.py
Tests of transaction: test_transaction_shard.py
"""
