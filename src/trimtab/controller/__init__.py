"""The controller: one for the cluster. It decides, writes down what it decided, and replays it.

request ─▶ decide ─▶ records ─▶ journal, image ─▶ on disk ─▶ brokers fetch them ─▶ answer

`node.py` is it as the others see it, `controller.py` puts the parts together. What decides is plain
functions of the image: `election.py` (one partition), `leader_changes.py`, `isr_changes.py`,
`broker_states.py`, `topics.py`, `new_partitions.py`, `reassignments.py`, `configs.py`.
"""
