"""Every option once: its name, type, default, range, unit, meaning and source.

The names and defaults are Apache Kafka's (brokers 4.3, clients 4.4), so that Kafka's configurations
work unchanged.

    options.py      the types of options; reads given values
    topic.py        the options of topics
    broker.py       the options of brokers and controllers
    group.py        the options of groups
    client_metrics.py  the options of subscriptions to clients' metrics
    effective.py    the effective value: given, set for all brokers, for one, or for a topic
"""

from __future__ import annotations

from trimtab.config.broker import BROKER
from trimtab.config.client_metrics import CLIENT_METRICS
from trimtab.config.effective import (
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
from trimtab.config.group import GROUP
from trimtab.config.options import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    PASSWORD,
    PER_BROKER,
    READ_ONLY,
    SHORT,
    STRING,
    Form,
    Option,
    OptionTable,
    OptionType,
    Password,
    Range,
    UpdateMode,
    Value,
    read,
    read_given,
    write,
)
from trimtab.config.topic import TOPIC

__all__ = [
    "BOOLEAN",
    "BROKER",
    "CLASS",
    "CLIENT_METRICS",
    "CLUSTER_WIDE",
    "DOUBLE",
    "GROUP",
    "INT",
    "INT_MAX",
    "LIST",
    "LONG",
    "LONG_MAX",
    "PASSWORD",
    "PER_BROKER",
    "READ_ONLY",
    "SHORT",
    "STRING",
    "TOPIC",
    "Form",
    "Option",
    "OptionTable",
    "OptionType",
    "Password",
    "Range",
    "Setting",
    "Settings",
    "Source",
    "UpdateMode",
    "Value",
    "check_broker",
    "check_group",
    "check_topic",
    "inherit",
    "inherited",
    "read",
    "read_given",
    "resolve",
    "resolve_group",
    "resolve_topic",
    "write",
]
