"""Measurements compared with rivals: `make bench`, or `make bench STAGE=broker`.

Both sides run on this machine, alternately and in one session, since figures from other machines
are not comparable. Each output line is one JSON object (`lab.benchmarks.report`).
"""
