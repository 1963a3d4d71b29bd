"""Measurements beside the rivals: `make bench`, or `make bench STAGE=broker`.

Both sides run on this machine, by turns, in one go: figures of another machine say nothing. Each
line printed is one JSON object (`benchmarks.report`).
"""
