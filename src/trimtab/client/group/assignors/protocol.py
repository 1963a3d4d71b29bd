"""What an assignor is given, and what it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from trimtab.kafka.wire.sentinels import NO_EPOCH

Assignment: TypeAlias = dict[str, list[TopicPartition]]
"""The partitions of each member by its id, in the order of topics and partitions."""

NO_GENERATION = NO_EPOCH
"""The generation of a member that has never been given partitions."""

NO_RATES: Mapping[TopicPartition, float] = {}


class Subscriber(NamedTuple):
    """One member of the group, as the metadata of its JoinGroup describes it.

    Attributes:
        member_id: the coordinator's name for it.
        instance_id: `group.instance.id` of a static member.
        topics: those to which it subscribes.
        owned: the partitions that it reads, or read until this rebalance.
        generation: the generation in which it was given them; -1 if there is none.
        rack: `client.rack`; None if it has none.
        rates: bytes/s of partitions that it has read, if its assignor measures them.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str | None = None
    rates: Mapping[TopicPartition, float] = NO_RATES


class Topic(NamedTuple):
    """A topic to which a member subscribes.

    Attributes:
        partitions: their number.
        racks: for each partition the racks of its replicas; empty if they are unknown.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def racks_of(self, index: int) -> frozenset[str]:
        """The racks of one partition's replicas; empty if they are unknown."""
        return self.racks[index] if index < len(self.racks) else frozenset()


class Assignor(Protocol):
    """Chooses the partitions of each member. All members of a group must name the same one.

    Attributes:
        name: what members call it in JoinGroup.
        is_cooperative: whether members keep their partitions while they join (KIP-429).
    """

    @property
    def name(self) -> str: ...

    @property
    def is_cooperative(self) -> bool: ...

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> bytes | None:
        """What a member sends to the leader with its subscription; None if nothing.

        Args:
            owned: the partitions that it was given last.
            generation: the generation in which it was given them; -1 if there is none.
            rates: bytes/s of the partitions that it has measured.
        """

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        """The member whose JoinGroup had this metadata. User data that cannot be read count as
        none."""

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        """The partitions of each member, also of those without any.

        Each partition of a topic with a subscriber goes to exactly one of its subscribers. A
        cooperative assignor leaves out the partitions that their owner must first revoke: the next
        rebalance assigns them. Topics that are not in `topics` do not exist.
        """


def existing_topics(subscriber: Subscriber, topics: Mapping[str, Topic]) -> frozenset[str]:
    """The topics to which it subscribes and that have partitions."""
    return frozenset(
        name for name in subscriber.topics if name in topics and topics[name].partitions > 0
    )


def subscribers_of_topics(
    subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]
) -> dict[str, list[Subscriber]]:
    """By topic its subscribers, in their order; the topics in the order of their names."""
    found: dict[str, list[Subscriber]] = {}
    for subscriber in subscribers:
        for name in existing_topics(subscriber, topics):
            found.setdefault(name, []).append(subscriber)
    return dict(sorted(found.items()))


def in_order(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    """First the static members by instance id, then the others by member id, as Java compares
    strings: by UTF-16 code units."""
    return sorted(
        subscribers,
        key=lambda each: (
            each.instance_id is None,
            _utf16(each.member_id if each.instance_id is None else each.instance_id),
            _utf16(each.member_id),
        ),
    )


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def plain_subscriber(
    member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
) -> Subscriber:
    """The member with the fields of its subscription, without its user data."""
    return Subscriber(
        member_id,
        instance_id,
        frozenset(metadata.topics),
        frozenset(
            TopicPartition(topic.topic, index)
            for topic in metadata.owned_partitions
            for index in topic.partitions
        ),
        max(metadata.generation_id, NO_GENERATION),
        metadata.rack_id or None,
    )


class WithoutUserData:
    """What assignors have alike that send no user data of their own."""

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> None:
        return None

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        return plain_subscriber(member_id, instance_id, metadata)
