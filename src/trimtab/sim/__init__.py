"""The virtual world: a deterministic event loop, a network and disks in memory, one seed.

    World ─┬─ VirtualLoop   the clock jumps to the next timer
           ├─ Network       delay, bandwidth, cuts and resets between named hosts
           ├─ disks         lose on a crash what was not flushed
           └─ trace         what happened, in order, hashed

Brokers and clients run in it unchanged: for them it is an asyncio loop. A failure is a seed.
"""
