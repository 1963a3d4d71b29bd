"""Which partition a record goes to: KIP-480, KIP-794, KIP-1123, by key, or as the user says.

`partitioner.py` says what a partitioner is and makes the one that options ask for; `built_in.py` is
the default. They see a topic's load and decide; nothing here sends, waits or keeps a record.
"""
