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

    def __init__(self) -> None:
        self.bytes_in = self.records_in = self.bytes_rejected = 0
        self.produces = self.failed_produces = 0
        self.bytes_out = self.fetches = self.failed_fetches = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        self.isr_shrinks = self.isr_expands = self.replicas = 0

    def add_counts(self, other: TopicTraffic) -> None:
        """Add the counts of another topic."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

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

    def add_replica(self, topic: str) -> TopicTraffic:
        """The counts for a new replica of a topic."""
        traffic = self.topics.get(topic)
        if traffic is None:
            traffic = self.topics[topic] = TopicTraffic()
        traffic.replicas += 1
        return traffic

    def drop_replica(self, topic: str) -> None:
        """A replica of the topic has gone. With the last one its counts join `others`, so that the
        broker's totals never fall."""
        traffic = self.topics[topic]
        traffic.replicas -= 1
        if not traffic.replicas:
            self.others.add_counts(self.topics.pop(topic))

    def total(self) -> TopicTraffic:
        """The counts of the broker."""
        total = TopicTraffic()
        for traffic in (self.others, *self.topics.values()):
            total.add_counts(traffic)
        return total
