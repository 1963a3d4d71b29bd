"""ListConfigResources (74), versions 0-1: the resources that can have options (KIP-1142).

Version 0 lists client metrics subscriptions only. Groups and client metrics subscriptions are
listed if they have options; topics and brokers always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
)
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_BROKER_LOGGER = 8
_KNOWN = (CONFIG_TOPIC, CONFIG_BROKER, _BROKER_LOGGER, CONFIG_CLIENT_METRICS, CONFIG_GROUP)
_TYPES_SINCE = 1


def list_config_resources(
    broker: Broker, header: RequestHeader, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """The resources of the requested types."""
    if header.api_version < _TYPES_SINCE:
        wanted = {CONFIG_CLIENT_METRICS}
    else:
        wanted = set(request.resource_types) or set(_KNOWN)
    if any(each not in _KNOWN for each in wanted):
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    found: list[ConfigResource] = []
    if CONFIG_TOPIC in wanted:
        found += [
            ConfigResource(resource_name=name, resource_type=CONFIG_TOPIC)
            for name in broker.image.topics
        ]
    for kind in (CONFIG_BROKER, _BROKER_LOGGER):
        if kind in wanted:
            found += [
                ConfigResource(resource_name=str(number), resource_type=kind)
                for number in sorted(broker.image.brokers)
            ]
    for kind in (CONFIG_CLIENT_METRICS, CONFIG_GROUP):
        if kind in wanted:
            found += [
                ConfigResource(resource_name=name, resource_type=kind)
                for name in broker.image.configured(kind)
            ]
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)
