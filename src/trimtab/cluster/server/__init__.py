"""Request handling common to all nodes: listen, answer in order, send requests to other nodes.

socket ─▶ Listener ─▶ Connection ─▶ handler ─▶ response ─▶ socket
Peer.ask(request) ─▶ another node's Listener ─▶ response

Tests of api_versions: tests/unit/cluster/broker/test_dispatch.py
Tests of prometheus: tests/unit/cluster/processes/test_metrics_server.py
Tests of request: test_connection.py
"""
