"""The real world: event loop, loop thread, files, and the processes of nodes.

`trimtab.sim` replaces it in simulations.
"""
