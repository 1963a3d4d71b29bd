"""Every option once: its name, type, default, range, unit, meaning and source.

The names and defaults are Apache Kafka's (brokers 4.3, clients 4.4), so that Kafka's configurations
work unchanged.

    topic.py        the options of topics
    broker.py       the options of brokers and controllers
    group.py        the options of groups
    client_metrics.py  the options of subscriptions to clients' metrics
    effective.py    the effective value: given, set for all brokers, for one, or for a topic

Tests: test_config.py
"""

from __future__ import annotations

from trimtab.cluster.config.broker import BROKER
from trimtab.cluster.config.client_metrics import CLIENT_METRICS
from trimtab.cluster.config.effective import (
    Setting,
    Settings,
    Source,
    check_broker,
    check_group,
    check_topic,
    inherit,
    inherited,
    resolve,
    resolve_group,
    resolve_topic,
)
from trimtab.cluster.config.group import GROUP
from trimtab.cluster.config.topic import TOPIC

__all__ = [
    "BROKER",
    "CLIENT_METRICS",
    "GROUP",
    "TOPIC",
    "Setting",
    "Settings",
    "Source",
    "check_broker",
    "check_group",
    "check_topic",
    "inherit",
    "inherited",
    "resolve",
    "resolve_group",
    "resolve_topic",
]
