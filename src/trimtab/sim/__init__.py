"""The virtual world: a deterministic event loop, a network and disks in memory, one seed.

    World ─┬─ VirtualLoop   the clock jumps to the next timer
           ├─ Network       delay, bandwidth, cuts and resets between named hosts
           ├─ disks         a crash loses what was not flushed
           └─ trace         the events in order, and a hash of them

Brokers and clients run in it unchanged: for them it is an asyncio loop. A seed repeats a failure.

Tests of connection: test_network.py
Tests of virtual_cluster: tests/simulation/test_without_controller.py
"""
