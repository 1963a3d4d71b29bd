"""From `send` to a complete batch: the hot path, on the caller's thread.

    intake_cy ─▶ placement_cy ─▶ batching_cy ─▶ queues_cy ─▶ accumulator_cy (for the sender)
    send         chooses the     appends to     batches      memory_cy limits their memory
                 partition       a batch

java_accumulator_cy has the other way to end turns, for `partitioner.compat=java`.

Compiled; the modules call each other in C, as their `.pxd` files declare.

Tests: test_intake.py
Tests of java_accumulator_cy: tests/unit/client/partitioner/test_partitioning_cases.py
"""
