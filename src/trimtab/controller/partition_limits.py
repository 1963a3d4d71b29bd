"""The limits on replicas that are in force (KIP-578); `trimtab.balance.limits` applies them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, PartitionLimits
from trimtab.config import Value, resolve
from trimtab.controller.topic_rules import WHOLE_CLUSTER
from trimtab.metadata.image import CONFIG_BROKER, ClusterImage
from trimtab.wire.messages.metadata_records import ConfigRecord


def read_limits(
    image: ClusterImage, given: Mapping[str, Value], controller_id: int
) -> PartitionLimits:
    """The limits in force: the value set for the controller's own id, else for all brokers, else
    the static one in `given`.

    Values set for other brokers are ignored, as the controller decides ("only the value that
    applies to the broker handling the request").
    """
    values = resolve(
        given,
        image.configs(CONFIG_BROKER, WHOLE_CLUSTER),
        image.configs(CONFIG_BROKER, str(controller_id)),
    )
    return PartitionLimits(cast(int, values[PER_BROKER]), cast(int, values[PER_CLUSTER]))


def is_ignored(record: ConfigRecord, controller_id: int) -> bool:
    """Whether the record sets a limit for a single broker other than the controller, which has no
    effect."""
    return (
        record.resource_type == CONFIG_BROKER
        and record.name in (PER_BROKER, PER_CLUSTER)
        and record.value is not None
        and record.resource_name not in (WHOLE_CLUSTER, str(controller_id))
    )
