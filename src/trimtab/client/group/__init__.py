"""Groups, seen from a member.

Tests of group, membership: test_group_consumer.py
Tests of subscription: test_consumer_protocol.py
"""
