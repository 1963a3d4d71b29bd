"""The topics that the members of a classic group of consumers subscribe to."""

from __future__ import annotations

from trimtab.coordinator.classic_group import ClassicGroup
from trimtab.errors import CorruptData
from trimtab.wire.messages.consumer_protocol import ConsumerProtocolSubscription, decode_embedded


def subscribed_topics(group: ClassicGroup) -> set[str] | None:
    """The topics of all members; None if the metadata of one cannot be read.

    Only the part of version 0 is read, as by Kafka: what follows it may have any form.
    """
    topics: set[str] = set()
    for member in group.members.values():
        first = next(iter(member.protocols.values()), b"")
        metadata = member.protocols.get(group.protocol or "", first)
        try:
            topics.update(decode_embedded(ConsumerProtocolSubscription, metadata, 0)[0].topics)
        except CorruptData:
            return None
    return topics
