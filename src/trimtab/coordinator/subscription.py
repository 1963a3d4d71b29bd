"""The topics that the members of a classic group of consumers subscribe to."""

from __future__ import annotations

from trimtab.coordinator.classic_group import ClassicGroup
from trimtab.errors import CorruptData
from trimtab.wire.messages.consumer_protocol import ConsumerProtocolSubscription, decode_embedded


def subscribed_topics(group: ClassicGroup) -> set[str]:
    """The topics of all members; none of a member whose metadata cannot be read."""
    return {
        topic
        for member in group.members.values()
        for metadata in member.protocols.values()
        for topic in _read_topics(metadata)
    }


def _read_topics(metadata: bytes) -> list[str]:
    try:
        return decode_embedded(ConsumerProtocolSubscription, metadata)[0].topics
    except CorruptData:
        return []
