"""The real world: event loop, loop thread, files and clock.

The only room with threads and blocking calls. `trimtab.sim` replaces it in simulations.
"""
