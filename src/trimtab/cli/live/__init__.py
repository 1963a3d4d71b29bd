"""What the live views share: `trimtab dashboard`, `top`, `load` and `what-if`.

source      a cluster that is watched in a thread of its own, or a recording of one
recording   snapshots as a file
rows        a snapshot as rows of brokers, topics, groups and racks
findings    what is wrong, with evidence and what to do
tables      rows as cells of text, for `top` and `load`
options     how `top` and `load` watch a cluster
"""
