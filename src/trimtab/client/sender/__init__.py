"""Sends batches and processes their acknowledgements, on the client's loop.

`sender.py` sends the batches that are due (`schedule.py`) and allowed (`identity.py`);
`transactions.py` is the identity of a transactional producer.

Tests of node_record: test_sender_faults.py
Tests of produce_request: test_sender.py
"""
