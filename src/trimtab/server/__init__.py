"""Request handling common to all nodes: listen, answer in order, send requests to other nodes.

socket ─▶ Listener ─▶ Connection ─▶ handler ─▶ response ─▶ socket
Peer.ask(request) ─▶ another node's Listener ─▶ response
"""
