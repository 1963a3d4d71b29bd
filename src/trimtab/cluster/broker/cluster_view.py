"""What a broker knows: who it is, its options, and the cluster's metadata."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.cluster import config
from trimtab.cluster.config import BROKER
from trimtab.cluster.config.node import format_address
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
)
from trimtab.cluster.server.cluster_secret import ClusterSecret
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.kafka.options import Config, read, read_given


class ClusterView:
    """The metadata that this broker has replayed, and its options.

    Attributes:
        id: this broker's id. Clients also take it for the controller's, as brokers forward requests
            to the controller.
        cluster_id: the id of its cluster.
        given: the options that the broker was started with.
        config: all options with their present values. The object stays the same.
        image: the cluster's metadata. A snapshot replaces the object.
        faults: what keeps this broker from others on purpose.
        secret: that of the cluster, by which its nodes know each other.

    Raises:
        UsageError: an option is unknown or has a bad value.
    """

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        options: Mapping[str, object],
        faults: BrokerFaults | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        self.id = broker_id
        self.cluster_id = cluster_id
        self.given = read_given(BROKER, options)
        self.config = read(BROKER, options)
        self.image = ClusterImage()
        self.faults = BrokerFaults() if faults is None else faults
        self.secret = secret

    def set_default_address(self, name: str, host: str, port: int) -> None:
        """Set an address option to this broker's address, unless it was given."""
        if not self.given.get(name):
            self.given[name] = (f"PLAINTEXT://{format_address(host, port)}",)

    def configure(self) -> None:
        """Apply the options that the metadata have for all brokers, and for this one."""
        self.config.update(
            config.resolve(
                self.given,
                self.image.configs(CONFIG_BROKER, ""),
                self.image.configs(CONFIG_BROKER, str(self.id)),
            )
        )

    def topic_config(self, topic: str) -> Config:
        """All options of a topic, with their values on this broker."""
        return config.resolve_topic(self.config, self.image.configs(CONFIG_TOPIC, topic))

    def find_leader(
        self, topic: str, index: int
    ) -> tuple[int, int, BrokerRegistration | None] | None:
        """A partition's leader id, leader epoch, and the leader's registration; None if the
        partition does not exist."""
        image = self.image.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        partition = image.partitions[index]
        return partition.leader, partition.leader_epoch, self.image.brokers.get(partition.leader)
