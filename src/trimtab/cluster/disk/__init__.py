"""The disk of a real machine, behind `trimtab.cluster.storage.storage.Storage`.

`trimtab.sim.disk` takes its place in simulations.
"""
