"""The requests a broker answers: one file per family of APIs, one plain function per API."""

from __future__ import annotations

from trimtab.broker.handlers.api_versions import describe_api_versions
from trimtab.broker.handlers.cluster import describe_cluster
from trimtab.broker.handlers.configs import describe_configs
from trimtab.broker.handlers.coordinators import find_coordinator
from trimtab.broker.handlers.fetch import fetch
from trimtab.broker.handlers.metadata import describe_metadata
from trimtab.broker.handlers.offsets import list_offsets
from trimtab.broker.handlers.produce import produce
from trimtab.broker.handlers.producer_ids import init_producer_id
from trimtab.broker.handlers.topics import create_topics, delete_topics
from trimtab.broker.request import Handler

HANDLERS: dict[int, Handler] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: describe_metadata,
    10: find_coordinator,
    18: describe_api_versions,
    19: create_topics,
    20: delete_topics,
    22: init_producer_id,
    32: describe_configs,
    60: describe_cluster,
}
"""By API key: every API in `trimtab.wire.messages.SERVED`."""
