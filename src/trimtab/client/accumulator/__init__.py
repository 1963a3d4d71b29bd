"""From `send` to a complete batch: the hot path, on the caller's thread.

    intake_cy ─▶ placement_cy ─▶ queues_cy ─▶ accumulator_cy (for the sender)
    send         chooses the     batches       memory_cy limits their memory
                 partition

Compiled; the modules call each other in C, as their `.pxd` files declare.
"""
