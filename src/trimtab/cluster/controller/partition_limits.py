"""The limits on replicas that are in force (KIP-578), and what placement makes even first
(KIP-1194); `trimtab.balance.limits` applies them."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, PartitionLimits
from trimtab.balance.placement import GOAL, PlacementGoal
from trimtab.cluster.config import resolve
from trimtab.cluster.controller.topic_rules import WHOLE_CLUSTER
from trimtab.cluster.metadata.image import CONFIG_BROKER, ClusterImage
from trimtab.kafka.options import Config, Value
from trimtab.kafka.wire.messages.metadata_records import ConfigRecord

OPTIONS = (PER_BROKER, PER_CLUSTER, GOAL)
"""trimtab's own options, which the controller obeys."""


def read_limits(
    image: ClusterImage, given: Mapping[str, Value], controller_id: int
) -> PartitionLimits:
    """The limits in force."""
    values = _resolve(image, given, controller_id)
    return PartitionLimits(values.integer(PER_BROKER), values.integer(PER_CLUSTER))


def read_goal(image: ClusterImage, given: Mapping[str, Value], controller_id: int) -> PlacementGoal:
    """What placement makes even first."""
    return PlacementGoal(_resolve(image, given, controller_id).text(GOAL))


def _resolve(image: ClusterImage, given: Mapping[str, Value], controller_id: int) -> Config:
    """The values set for the controller's own id, else for all brokers, else those in `given`.

    Values set for other brokers are ignored, as the controller decides ("only the value that
    applies to the broker handling the request").
    """
    return resolve(
        given,
        image.configs(CONFIG_BROKER, WHOLE_CLUSTER),
        image.configs(CONFIG_BROKER, str(controller_id)),
    )


def is_ignored(record: ConfigRecord, controller_id: int) -> bool:
    """Whether the record sets one of `OPTIONS` for a single broker other than the controller, which
    has no effect."""
    return (
        record.resource_type == CONFIG_BROKER
        and record.name in OPTIONS
        and record.value is not None
        and record.resource_name not in (WHOLE_CLUSTER, str(controller_id))
    )
