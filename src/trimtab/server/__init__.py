"""What every node of a cluster does with frames: it listens, answers in order, and asks others.

socket ─▶ Listener ─▶ Connection ─▶ handler ─▶ response ─▶ socket
Peer.ask(request) ─▶ another node's Listener ─▶ response
"""
