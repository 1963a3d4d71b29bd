"""Elections of partitions' leaders, on request (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.calls import Family, check, read_error, sort_answers
from trimtab.kafka.arguments import Partition, checked_flag, checked_partitions
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


class ElectionAdmin(Family):
    """Elects leaders."""

    async def elect_leaders(
        self, partitions: Iterable[Partition] | None = None, unclean: bool = False
    ) -> list[TopicPartition]:
        """Make the first live replica in sync, the preferred leader, lead again (KIP-183, KIP-460).

        Args:
            partitions: None for all of the cluster.
            unclean: instead elect any live replica for partitions without a leader. Records that it
                lacks are lost.

        Returns:
            The partitions that have a new leader; the others needed no election.

        Raises:
            PartlyRefused: no replica can be elected for some partitions
                (PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE), or they do not
                exist; `done` has the partitions with a new leader.
        """
        chosen = None if partitions is None else checked_partitions(partitions)
        checked_flag("unclean", unclean)
        elected: list[TopicPartition] = []
        refusals: dict[TopicPartition, BrokerError] = {}
        wanted = None if chosen is None else dict.fromkeys(chosen)

        async def elect() -> None:
            # An election that was held already is not needed, so that the request may be repeated.
            connection = await self._calls.connect_to_controller()
            request = ElectLeadersRequest(
                election_type=_UNCLEAN if unclean else _PREFERRED,
                topic_partitions=None
                if wanted is None
                else [
                    TopicPartitions(topic=topic, partitions=indexes)
                    for topic, indexes in by_topic(wanted).items()
                ],
                timeout_ms=self._calls.timeout_ms,
            )
            response = await connection.request(request)
            check(response.error_code, None, "elections")
            answers = (
                (partition, read_error(result.error_code, result.error_message, str(partition)))
                for topic in response.replica_election_results
                for result in topic.partition_result
                for partition in [TopicPartition(topic.topic, result.partition_id)]
            )
            sort_answers(answers, {} if wanted is None else wanted, elected, refusals)

        if wanted is None or wanted:
            await self._calls.retry("elect leaders", elect)
        elected.sort()
        refused = {
            partition: error
            for partition, error in refusals.items()
            if error.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
        if refused:
            raise PartlyRefused(refused, elected)
        return elected
