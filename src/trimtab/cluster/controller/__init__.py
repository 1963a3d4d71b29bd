"""The controller, one for the cluster. It decides, appends its decisions to a journal, and replays
them.

request ─▶ decide ─▶ records ─▶ journal, image ─▶ on disk ─▶ brokers fetch them ─▶ answer

`node.py` is the network node, `controller.py` connects the parts. Decisions are plain functions of
the image: `election.py` (one partition), `leader_changes.py`, `isr_changes.py`,
`broker_states.py`, `topics.py`, `new_partitions.py`, `reassignments.py`, `configs.py`.

Tests of decision: test_topics.py
Tests of topic_rules: test_faults.py
Tests of quorum: test_node.py
"""
