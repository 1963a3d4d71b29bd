"""DeleteTopics (API 20)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, string, uuid


@struct(versions="6+")
class DeleteTopicState:
    """A topic, by name or by id."""

    name: string | None = field(nullable_versions="6+", default=None)
    topic_id: uuid = ZERO_UUID


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Delete topics: by name up to v5, by name or id from v6. v4 is flexible."""

    topics: list[DeleteTopicState] = field(versions="6+", default_factory=list)
    topic_names: list[string] = field(versions="0-5", default_factory=list, ignorable=True)
    timeout_ms: int32


@struct()
class DeletableTopicResult:
    """The result for one topic; the name is null if an unknown id was given."""

    name: string | None = field(nullable_versions="6+")
    topic_id: uuid = field(versions="6+", default=ZERO_UUID, ignorable=True)
    error_code: int16 = 0
    error_message: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """One result per topic.

    v1 adds the throttle time; v3 may answer TOPIC_DELETION_DISABLED. v4 is flexible. v5 adds the
    error message; v6 the topic id.
    """

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult]
