"""From a batch to its acknowledgement, on the client's loop.

`sender.py` sends what `schedule.py` says is due and `identity.py` says may go; `transactions.py` is
the identity of a transactional producer.
"""
