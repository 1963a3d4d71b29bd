"""The clients: producer, consumer and admin, and the stages between them and the brokers.

    send ─▶ partitioner ─▶ accumulator ─▶ sender ─▶ network ═▶ broker
    poll ◀─ consumer ◀─ fetcher ◀─ network ◀══ broker

`producer`, `consumer` and `admin` hold the public classes; each folder is one stage.
"""
