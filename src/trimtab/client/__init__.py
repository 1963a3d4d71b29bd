"""The asynchronous clients, and the stages between them and the brokers.

    send ─▶ partitioner ─▶ accumulator ─▶ sender ─▶ network ═▶ broker
    poll ◀─ consumer ◀─ fetcher ◀─ network ◀══ broker

`producer`, `consumer` and `admin` hold the public classes; each folder is one stage. The room
`blocking` wraps them for programs without an event loop.
"""
