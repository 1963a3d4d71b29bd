"""The topics whose hot keys a producer treats (`partitioner.hot.keys`), and whether it may.

Keys of a compacted topic are not treated: compaction keeps the last record of a key in each
partition, so a key that is in several would have several last values.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import Connections
from trimtab.client.network.options import Options
from trimtab.kafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    Unavailable,
    UsageError,
    error_code,
)
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

_TOPIC = 2


class Treatment(NamedTuple):
    """How a topic's hot keys are treated.

    Attributes:
        mode: split or move.
        shards: among how many partitions a key is split; 0: as many as its share needs.
    """

    mode: str
    shards: int = 0


def read_treatments(options: Options, has_partitioner: bool) -> dict[str, Treatment]:
    """The treatments by topic, from `partitioner.hot.keys`.

    Args:
        has_partitioner: whether `partitioner.class` is set.

    Raises:
        UsageError: a topic is named twice, or another option contradicts.
    """
    text = options.optional_text("partitioner.hot.keys")
    if text is None:
        return {}
    found: dict[str, Treatment] = {}
    for entry in text.split(","):
        topic, _, how = entry.partition("=")
        mode, _, shards = how.partition(":")
        if topic in found:
            raise UsageError(f"partitioner.hot.keys names topic {topic} twice; keep one")
        found[topic] = Treatment("split" if mode == "shard" else mode, int(shards or 0))
    contradictions = {
        "partitioner.class is set, and decides alone": has_partitioner,
        "partitioner.compat=java promises Java's partitions": (
            options.text("partitioner.compat") == "java"
        ),
        "partitioner.ignore.keys=true spreads all records without regard to keys": (
            options.flag("partitioner.ignore.keys")
        ),
        "with acks=0 no record is ever acknowledged": options.text("acks") == "0",
        "a key is moved in order only with enable.idempotence=true": (
            not options.flag("enable.idempotence")
            and any(each.mode == "move" for each in found.values())
        ),
    }
    for reason, is_so in contradictions.items():
        if is_so:
            raise UsageError(f"partitioner.hot.keys={text}: {reason}; leave one of the two out")
    return found


async def check_treatable(
    connections: Connections, topic: str, backoff: Backoff, random: Random, timeout: float
) -> None:
    """Ask the cluster whether the topic's keys may be treated.

    Raises:
        UsageError: the topic is compacted, or this client may not ask.
        Unavailable: no answer within `timeout` seconds.
    """
    failures = 0
    last: KafkaError | None = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    policy = await _ask_policy(connections, topic)
                    break
                except (BrokerError, Unavailable) as error:
                    if isinstance(error, BrokerError) and not error.retriable:
                        raise
                    last = error
                await asyncio.sleep(backoff.wait(failures, random))
                failures += 1
    except TimeoutError:
        raise Unavailable(
            f"partitioner.hot.keys needs the options of topic {topic}, and none came within"
            f" {timeout:g} s" + (f": {last}" if last else "")
        ) from None
    if "compact" in policy:
        raise UsageError(
            f"partitioner.hot.keys names topic {topic}, which is compacted (cleanup.policy="
            f"{policy}): compaction would keep a last value of a key in each of its partitions;"
            " leave the topic out"
        )


async def _ask_policy(connections: Connections, topic: str) -> str:
    connection = await connections.connect_any()
    resource = DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=["cleanup.policy"]
    )
    response = await connection.request(DescribeConfigsRequest(resources=[resource]))
    (result,) = response.results
    code = error_code(result.error_code)
    if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        raise UsageError(
            f"partitioner.hot.keys names topic {topic}, and this client may not see whether it is"
            " compacted: allow it DescribeConfigs on the topic, or leave the topic out"
        )
    if code is not ErrorCode.NONE:
        raise BrokerError(code, result.error_message or "", f"topic {topic}")
    return next((each.value or "" for each in result.configs), "")
