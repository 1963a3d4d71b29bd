"""The options of a subscription to clients' metrics (KIP-714): Kafka's `ClientMetricsConfigs`.

Clients send no metrics to trimtab's brokers. Subscriptions are accepted, stored and described, and
have no effect.
"""

from __future__ import annotations

from trimtab.kafka.options import (
    Form,
    OptionTable,
    Range,
    int32,
    strings,
)

_KIP = "KIP-714"
_PATTERN = Form(
    r"\s*client_(id|instance_id|software_name|software_version|source_address|source_port)\s*"
    r"=[^=]+",
    "",
    "a list of name=pattern, such as client_software_name=.*, of client_id, client_instance_id, "
    "client_software_name, client_software_version, client_source_address and client_source_port",
)

CLIENT_METRICS = OptionTable(
    "client metrics",
    (
        int32(
            "interval.ms",
            300_000,
            "How often a client sends its metrics.",
            Range(100, 3_600_000),
            kip=_KIP,
            honoured=False,
        ),
        strings(
            "match",
            (),
            "Which clients send them: those that all patterns match.",
            _PATTERN,
            kip=_KIP,
            honoured=False,
        ),
        strings("metrics", (), "Prefixes of the metrics' names.", kip=_KIP, honoured=False),
    ),
)
