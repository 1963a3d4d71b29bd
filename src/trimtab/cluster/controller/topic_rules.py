"""The current values of the topic options that govern elections."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.cluster.config import TOPIC
from trimtab.cluster.metadata.image import CONFIG_BROKER, CONFIG_TOPIC, ClusterImage
from trimtab.kafka.options import Value

WHOLE_CLUSTER = ""
"""The resource name of the broker config for all brokers."""

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"


class TopicRules:
    """Looks up an option: first the topic's, then the one for all brokers, then the static one.

    Args:
        image: the cluster's image; every call reads its current state.
        broker_config: the static broker options (`trimtab.cluster.config.BROKER`).
    """

    def __init__(self, image: ClusterImage, broker_config: Mapping[str, Value]) -> None:
        self._image = image
        self._broker_config = broker_config

    def min_isr(self, topic: str) -> int:
        """`min.insync.replicas`; may exceed a partition's number of replicas."""
        value = self._value(topic, MIN_ISR)
        assert isinstance(value, int)
        return value

    def allows_unclean(self, topic: str) -> bool:
        """`unclean.leader.election.enable`."""
        value = self._value(topic, UNCLEAN)
        assert isinstance(value, bool)
        return value

    def _value(self, topic: str, option: str) -> Value:
        text = self._image.value(CONFIG_TOPIC, topic, option)
        if text is None:
            text = self._image.value(CONFIG_BROKER, WHOLE_CLUSTER, option)
        return self._broker_config[option] if text is None else TOPIC[option].check(text)
