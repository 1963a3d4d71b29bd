"""Elections of partitions' leaders, on request (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import (
    Calls,
    by_topic,
    check,
    may_be_sent_again,
    read_error,
)
from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


async def elect_leaders(
    calls: Calls, partitions: Sequence[TopicPartition] | None, is_unclean: bool
) -> list[TopicPartition]:
    """An election that was held already is not needed, so that the request may be repeated."""
    elected: list[TopicPartition] = []
    refusals: dict[TopicPartition, BrokerError] = {}
    wanted = None if partitions is None else dict.fromkeys(partitions)

    async def elect() -> None:
        connection = await calls.connect_to_controller()
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if is_unclean else _PREFERRED,
            topic_partitions=None
            if wanted is None
            else [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(wanted).items()
            ],
            timeout_ms=calls.timeout_ms,
        )
        response = await connection.request(request)
        check(response.error_code, None, "elections")
        again: list[BrokerError] = []
        for topic in response.replica_election_results:
            for each in topic.partition_result:
                partition = TopicPartition(topic.topic, each.partition_id)
                error = read_error(each.error_code, each.error_message, str(partition))
                if error is not None and may_be_sent_again(error):
                    again.append(error)
                    continue
                if wanted is not None:
                    wanted.pop(partition, None)
                if error is None:
                    elected.append(partition)
                elif error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                    refusals[partition] = error
        if again:
            raise again[0]

    if wanted is None or wanted:
        await calls.retry("elect leaders", elect)
    elected.sort()
    if refusals:
        raise PartlyRefused(refusals, elected)
    return elected
