"""The real world: event loop, loop thread, files and clock.

The only room with threads and blocking calls. Its twin is `trimtab.sim`.
"""
