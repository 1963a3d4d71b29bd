"""ListConfigResources (74), versions 0-1: the resources that can have options (KIP-1142).

Version 0 lists client metrics subscriptions only. Groups and client metrics subscriptions are
listed if they have options; topics and brokers always.
"""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_CLIENT_METRICS,
    CONFIG_GROUP,
    CONFIG_TOPIC,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_BROKER_LOGGER = 8
_KNOWN = (CONFIG_TOPIC, CONFIG_BROKER, _BROKER_LOGGER, CONFIG_CLIENT_METRICS, CONFIG_GROUP)
_TYPES_SINCE = 1


def list_config_resources(
    view: ClusterView, header: RequestHeader, request: ListConfigResourcesRequest
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
    brokers = [str(number) for number in sorted(view.image.brokers)]
    names: dict[int, Iterable[str]] = {
        CONFIG_TOPIC: view.image.topics,
        CONFIG_BROKER: brokers,
        _BROKER_LOGGER: brokers,
        CONFIG_CLIENT_METRICS: view.image.configured(CONFIG_CLIENT_METRICS),
        CONFIG_GROUP: view.image.configured(CONFIG_GROUP),
    }
    found = [
        ConfigResource(resource_name=name, resource_type=kind)
        for kind in _KNOWN
        if kind in wanted
        for name in names[kind]
    ]
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)
