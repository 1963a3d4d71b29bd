"""ApiVersions (18), versions 0-4: which APIs are served, in which versions.

- Produce is advertised from version 0, but served from 3. If the minimum were higher, older
  librdkafka would assume a broker without compression and send uncompressed batches (KAFKA-18659).
  Apache Kafka 4 does the same.
- An ApiVersions request of an unsupported version is answered in version 0, with
  UNSUPPORTED_VERSION and the supported versions of ApiVersions itself (KIP-511).
- Up to version 3, features whose lowest level is 0 are not told as supported: Java's clients before
  4.0 would fail (KAFKA-17011).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trimtab.cluster.server.request import Handler
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages import APIS, Api, ProduceRequest
from trimtab.kafka.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH

API_VERSIONS = ApiVersionsRequest.api_key
_LEVEL_0_SINCE = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class FeatureLevels(NamedTuple):
    """The features of a cluster (KIP-584).

    Attributes:
        supported: the lowest and the highest level of each that this node supports.
        finalized: the level of each in the cluster.
        epoch: rises with each change of `finalized`.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


NO_FEATURES: Final = FeatureLevels({}, {}, NO_EPOCH)


def describe_api_versions(
    apis: Mapping[int, Api], features: Callable[[], FeatureLevels]
) -> Handler:
    """The ApiVersions handler of a node that serves these APIs, in a cluster with these features
    now."""
    advertised = [_advertise(apis[key]) for key in sorted(apis)]

    def describe(header: RequestHeader, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if header.api_version >= 3 and not _is_valid(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        now = features()
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=advertised,
            supported_features=[
                SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest) in sorted(now.supported.items())
                if lowest or header.api_version >= _LEVEL_0_SINCE
            ],
            finalized_features_epoch=now.epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(now.finalized.items())
                if level
            ],
        )

    return describe


def answer_unsupported_version() -> ApiVersionsResponse:
    """The response, in version 0, to an ApiVersions request of an unsupported version."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_advertise(APIS[API_VERSIONS])]
    )


def _advertise(api: Api) -> ApiVersion:
    low = 0 if api.request is ProduceRequest else api.min_version
    return ApiVersion(api_key=api.key, min_version=low, max_version=api.max_version)


def _is_valid(request: ApiVersionsRequest) -> bool:
    """Whether the client's software name and version have only letters, digits, '-' and '.'
    (KIP-511)."""
    return all(
        _SOFTWARE.fullmatch(name)
        for name in (request.client_software_name, request.client_software_version)
    )
