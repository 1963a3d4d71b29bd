"""What a broker counts while it serves records, by topic, since it started.

Source: Kafka's `BrokerTopicMetrics`.
"""

from __future__ import annotations


class TopicTraffic:
    """The counts of one topic. Its partitions on this broker share the object.

    Attributes:
        bytes_in: of batches from producers, duplicates included.
        records_in: in those batches.
        bytes_rejected: of batches above `max.message.bytes`.
        produces: batches in produce requests.
        failed_produces: those refused for a reason that is not part of ordinary operation.
        bytes_out: of records sent to consumers.
        fetches: partitions in fetch responses.
        failed_fetches: those with an error that is not part of ordinary operation.
        replication_bytes_in: of records fetched from leaders.
        replication_bytes_out: of records sent to followers.
        isr_shrinks: ISRs that got smaller while this broker led.
        isr_expands: ISRs that got larger while this broker led.
        replicas: partitions of the topic on this broker.
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "isr_expands",
        "isr_shrinks",
        "produces",
        "records_in",
        "replicas",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    bytes_in: int
    records_in: int
    bytes_rejected: int
    produces: int
    failed_produces: int
    bytes_out: int
    fetches: int
    failed_fetches: int
    replication_bytes_in: int
    replication_bytes_out: int
    isr_shrinks: int
    isr_expands: int
    replicas: int

    def add(self, other: TopicTraffic) -> None:
        """Add the counts of another topic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count_isr(self, before: int, after: int) -> None:
        """Count a change of the number of replicas in sync."""
        if after < before:
            self.isr_shrinks += 1
        elif after > before:
            self.isr_expands += 1


class Traffic:
    """The counts of a broker.

    Attributes:
        topics: by name, the topics of which this broker has replicas.
        others: what does not belong to one of them any more, or never did.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self.others = TopicTraffic()

    def begin(self, topic: str) -> TopicTraffic:
        """The counts for a new replica of a topic."""
        traffic = self.topics.get(topic)
        if traffic is None:
            traffic = self.topics[topic] = TopicTraffic()
        traffic.replicas += 1
        return traffic

    def end(self, topic: str) -> None:
        """A replica of the topic has gone. With the last one its counts join `others`, so that the
        broker's totals never fall."""
        traffic = self.topics[topic]
        traffic.replicas -= 1
        if not traffic.replicas:
            self.others.add(self.topics.pop(topic))

    def total(self) -> TopicTraffic:
        """The counts of the broker."""
        total = TopicTraffic()
        for traffic in (self.others, *self.topics.values()):
            total.add(traffic)
        return total
