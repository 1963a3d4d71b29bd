"""A cluster and its clients under random faults in virtual time, and what must hold meanwhile.

simulation.py       one run: a minute of faults, then all is healed and read back
faults.py           the schedule of faults; fault_chains.py has those of several steps
workload.py         producers and readers; members.py has groups, transactors.py transactions
operators.py        the requests of operators
checkers.py         what must hold of the cluster; group_checker.py of a group
runs.py             `python -m lab.reliability`: many seeds, or one with its trace
"""
