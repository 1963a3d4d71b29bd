"""One broker: from a producer's batches to its partitions' logs, and back to consumers.

    connection ─▶ handler ─▶ partition ─▶ log ─▶ storage
                                 │ (high watermark rises)
    connection ◀─ handler ◀──────┘

A batch is checked by its header and CRC, stamped with offset and leader epoch in place, and
written as it is; no record is opened.
"""
