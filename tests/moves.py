"""Waiting for partitions that move."""

from collections.abc import Sequence

from trimtab import Admin


def await_replicas(admin: Admin, topic: str, replicas: Sequence[tuple[int, ...]]) -> None:
    """Wait until brokers say so: the controller's list of moves is empty a little earlier."""
    while [each.replicas for each in admin.describe_topics([topic])[topic].partitions] != replicas:
        pass
