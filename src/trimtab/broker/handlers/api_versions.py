"""ApiVersions (18), versions 0-4: which APIs are served, in which versions.

- Produce is advertised from 0, though it is served from 3: older librdkafka takes a higher minimum
  for a broker that knows no compression and stops compressing (KAFKA-18659). Apache Kafka 4 does
  the same.
- A version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the versions of
  ApiVersions itself (KIP-511).
- No features are advertised.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages import SERVED
from trimtab.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_PRODUCE = 0
_API_VERSIONS = 18


def _advertised(key: int) -> ApiVersion:
    api = SERVED[key]
    low = 0 if key == _PRODUCE else api.min_version
    return ApiVersion(api_key=key, min_version=low, max_version=api.max_version)


def describe_api_versions(
    broker: Broker, header: RequestHeader, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Every API that is served."""
    if header.api_version >= 3 and not _is_valid(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE, api_keys=[_advertised(key) for key in sorted(SERVED)]
    )


def answer_unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions request of a version that is not served."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_advertised(_API_VERSIONS)]
    )


def _is_valid(request: ApiVersionsRequest) -> bool:
    """The names of client software are words of letters, digits, '-' and '.' (KIP-511)."""
    return all(
        _SOFTWARE.fullmatch(name)
        for name in (request.client_software_name, request.client_software_version)
    )
