"""Describes the quorum of controllers, and how far brokers follow its log (KIP-595, KIP-836)."""

from __future__ import annotations

from typing import Final

from trimtab.client.admin.answers import Quorum, QuorumReplica
from trimtab.client.admin.calls import Family, check
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    ReplicaState,
    TopicData,
)

_TOPIC: Final = "__cluster_metadata"


class QuorumAdmin(Family):
    """Describes the quorum."""

    async def describe_quorum(self) -> Quorum:
        """The controllers that vote about the cluster's metadata, and the brokers that follow.

        Brokers fetch at least every 0.5 s: one that has not for some seconds hangs, or has lost the
        controller. One that has not for 5 minutes is left out.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, if the cluster has no quorum, as with ZooKeeper.
        """
        wanted = TopicData(topic_name=_TOPIC, partitions=[PartitionData(partition_index=0)])

        async def describe() -> Quorum:
            connection = await self._calls.connect_any()
            response = await connection.request(DescribeQuorumRequest(topics=[wanted]))
            check(response.error_code, response.error_message, "quorum")
            described = [each for topic in response.topics for each in topic.partitions]
            if len(described) != 1:
                raise BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{connection.node} describes {len(described)} quorums; there is one",
                    "quorum",
                )
            (quorum,) = described
            check(quorum.error_code, quorum.error_message, "quorum")
            return Quorum(
                quorum.leader_id,
                quorum.leader_epoch,
                quorum.high_watermark,
                tuple(map(_read, quorum.current_voters)),
                tuple(map(_read, quorum.observers)),
            )

        return await self._calls.retry("describe the quorum", describe)


def _read(replica: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        replica.replica_id,
        _known(replica.log_end_offset),
        _known(replica.last_fetch_timestamp),
        _known(replica.last_caught_up_timestamp),
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value
