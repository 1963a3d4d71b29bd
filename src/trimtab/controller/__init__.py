"""The controller: one for the cluster. It decides, writes down what it decided, and replays it.

command ─▶ decide ─▶ records ─▶ journal ─▶ replay ─▶ image ─▶ brokers
"""
