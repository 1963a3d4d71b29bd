"""From `send` to a batch that can go: the hot path, on the caller's thread.

    intake_cy ─▶ placement_cy ─▶ queues_cy ─▶ accumulator_cy (what the sender takes)
    checks       whose turn?     batches       memory_cy bounds them all

Compiled; the modules call each other in C, as their `.pxd` files declare.
"""
