"""The requests a broker answers: one file per family of APIs, one plain function per API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.broker.handlers.acls import create_acls, delete_acls, describe_acls
from trimtab.broker.handlers.batch_sizes import list_batch_sizes
from trimtab.broker.handlers.cluster import describe_cluster
from trimtab.broker.handlers.config_resources import list_config_resources
from trimtab.broker.handlers.configs import describe_configs
from trimtab.broker.handlers.coordinators import find_coordinator
from trimtab.broker.handlers.delete_records import delete_records
from trimtab.broker.handlers.epochs import offset_for_leader_epoch
from trimtab.broker.handlers.fetch import fetch
from trimtab.broker.handlers.forwarding import FORWARDED, forward
from trimtab.broker.handlers.groups import consumer_group_heartbeat, fetch_offsets
from trimtab.broker.handlers.log_dirs import alter_replica_log_dirs, describe_log_dirs
from trimtab.broker.handlers.metadata import describe_metadata
from trimtab.broker.handlers.offsets import list_offsets
from trimtab.broker.handlers.produce import produce
from trimtab.broker.handlers.producer_ids import init_producer_id
from trimtab.broker.handlers.producers import describe_producers
from trimtab.broker.handlers.topic_partitions import describe_topic_partitions

HANDLERS: dict[int, Callable[..., Any]] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: describe_metadata,
    9: fetch_offsets,
    10: find_coordinator,
    21: delete_records,
    22: init_producer_id,
    23: offset_for_leader_epoch,
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
    32: describe_configs,
    34: alter_replica_log_dirs,
    35: describe_log_dirs,
    60: describe_cluster,
    61: describe_producers,
    68: consumer_group_heartbeat,
    74: list_config_resources,
    75: describe_topic_partitions,
    32_001: list_batch_sizes,
    **dict.fromkeys(FORWARDED, forward),
}
"""By API key; each is given the broker, the header and the request (`trimtab.server.request`)."""
