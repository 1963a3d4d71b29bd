"""The client's part of a record's path: from `send` to the wire, and from there to whoever reads.

    send ─▶ partitioner ─▶ accumulator ─▶ sender ─▶ connections ═▶ broker
    whoever reads ◀─ consumer ◀─ fetcher ◀─ connections ◀══ broker

`producer`, `consumer` and `admin` are the public faces; everything else is what they decide with.
"""
