"""The client's part of a record's path: from `send` to the wire, and from there to whoever reads.

    send ─▶ partitioner ─▶ accumulator ─▶ sender ─▶ network ═▶ broker
    whoever reads ◀─ consumer ◀─ fetcher ◀─ network ◀══ broker

`producer`, `consumer` and `admin` are the public faces; the folders are what they decide with.
"""
