"""The synchronous clients: `Producer`, `Consumer` and `Admin`, for programs without an event loop.

caller's thread                             loop thread
Admin.topics() ── runs, and waits for ────▶ AsyncAdmin.topics()
Producer.send() ─▶ accumulator ◀─────────── sender
Consumer.poll() ◀─ reader ◀──────────────── fetcher

Each wraps the asynchronous client of `trimtab.client` (`face.py`), which has the signatures and
their documentation. Only what must run on the caller's thread is written here: `send` appends a
record, and `poll` decodes records.
"""
