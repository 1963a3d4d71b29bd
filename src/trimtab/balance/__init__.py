"""Where replicas go: pure arithmetic, used by the controller and the command line.

`placement.py` places the replicas of new partitions, `limits.py` keeps them within the limits
(KIP-578), and `plan.py` finds the `moves.py` that balance existing ones, with `linear_program.py`.
"""
