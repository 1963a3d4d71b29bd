"""Where replicas go, and who reads which partitions: pure arithmetic.

The controller and the command line use `placement.py`, which places the replicas of new partitions,
`limits.py`, which keeps them within the limits (KIP-578), and `plan.py`, which finds the `moves.py`
that balance existing ones: leaders from a flow (`leader_flow.py`), or all from `linear_program.py`.
`steps.py` decides from what a cluster shows (`observed.py`) which `actions.py` come next until the
replicas are as wanted: one replica at a time (`next_replicas.py`), with a bounded number of bytes
in flight (`pace.py`), throttled (`throttles.py`, `throttle_steps.py`).
`level_plan.py` levels the load of a cluster (`cluster_load.py`): a first plan (`level_greedy.py`),
a better one from prices (`level_program.py`), both from what may change (`level_choices.py`), and
the fewest bytes that any plan needs (`level_bounds.py`).
The client's assignors and the coordinator's use `count_levels.py` and `load_levels.py`: equal
numbers of partitions, or equal bytes/s, for the `members.py` of a group.
`evenness.py` says whether a sample of keys is even; `heavy_hitters_cy.py` finds the heaviest ones.

Tests of actions, observed: test_steps.py
Tests of count_levels, load_levels, members, rack_rings: tests/property/test_client_assignors.py
"""
