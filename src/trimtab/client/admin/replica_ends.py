"""Where the log of each replica ends, as its own broker tells: how far followers lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from trimtab.client.admin.calls import Calls, Family, FinalError
from trimtab.client.network.connection import Connection
from trimtab.kafka.arguments import (
    Partition,
    checked_integer,
    checked_mapping,
    checked_partitions,
    checked_wait_ms,
)
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    ErrorCode,
    Unavailable,
    error_code,
)
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.sentinels import DEBUGGING_REPLICA, LATEST

_AT_ONCE: Final = 2000
"""Partitions of one request, so that broker and client serve others between two of them."""

ReplicaEnds: TypeAlias = dict[TopicPartition, int | BrokerError]
"""By partition, the end of one broker's replica, or the error."""


class ReplicaEndAdmin(Family):
    """Looks up where replicas end."""

    async def list_replica_ends(
        self,
        replicas: Mapping[int, Iterable[Partition]],
        timeout_ms: float | None = None,
    ) -> dict[int, ReplicaEnds]:
        """The log end offset of each replica, asked of its own broker; of all brokers at once.

        A follower lags by the leader's end minus its own. The brokers answer at different moments,
        so the difference of replicas in sync may be a little above or below 0.

        Args:
            replicas: the partitions to ask each broker for, by broker id.
            timeout_ms: how long to wait for the brokers; `default.api.timeout.ms` if None.

        Returns:
            By broker id, for each partition its end or an error: BROKER_NOT_AVAILABLE from a broker
            that is not alive, REQUEST_TIMED_OUT if it did not answer in time,
            SASL_AUTHENTICATION_FAILED if it refused this client or this client it,
            NOT_LEADER_OR_FOLLOWER if it has no replica, or what else it answered.

        Raises:
            Unavailable: at a client's first call, if the cluster did not tell its brokers in time.
        """
        # Kafka's debugging replica (`ReplicaManager.fetchOffset`): no leader is needed.
        wanted = {}
        given = checked_mapping("replicas", replicas, "{0: [('t', 0)]}")
        for broker, partitions in list(given.items()):
            wanted[checked_integer("broker", broker)] = checked_partitions(partitions)
            await asyncio.sleep(0)  # a broker may have thousands: let others run
        calls = self._calls
        timeout = calls.session.timeout
        if timeout_ms is not None:
            timeout = checked_wait_ms("timeout_ms", timeout_ms)
        calls.session.check_open()
        if not wanted:
            return {}
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        if not calls.session.metadata.nodes:
            await calls.retry("find the brokers", lambda: calls.fetch_metadata([]), timeout)
        found = await asyncio.gather(
            *(_ask_broker(calls, *each, end - loop.time()) for each in wanted.items())
        )
        return dict(zip(wanted, found, strict=True))


async def _ask_broker(
    calls: Calls, broker: int, wanted: Sequence[TopicPartition], timeout: float
) -> ReplicaEnds:
    """The ends of these partitions at one broker; those that it has not told get its error."""
    ends: ReplicaEnds = {}
    metadata, subject = calls.session.metadata, f"broker {broker}"

    async def ask() -> None:
        # Metadata are not fetched before each call: a broker that hangs may be asked for them.
        if broker not in metadata.nodes:
            await calls.fetch_metadata([])
        if broker not in metadata.nodes:
            alive = ", ".join(map(str, sorted(metadata.nodes)))
            detail = f"it is not alive; alive are {alive}"
            raise FinalError(BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, detail, subject))
        try:
            connection = await calls.session.connections.connect(broker)
            while len(ends) < len(wanted):
                part = wanted[len(ends) : len(ends) + _AT_ONCE]
                ends.update(await _request(connection, part))
        except Unavailable:
            await calls.fetch_metadata([])  # it may be gone, or have moved
            raise

    failure: BrokerError
    try:
        await calls.retry("ask for the ends of replicas", ask, timeout)
        return ends
    except BrokerError as error:
        failure = error
    except AuthenticationFailed as error:
        failure = BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error), subject)
    except Unavailable as error:
        failure = BrokerError(ErrorCode.REQUEST_TIMED_OUT, str(error), subject)
    return {partition: ends.get(partition, failure) for partition in wanted}


async def _request(connection: Connection, wanted: Sequence[TopicPartition]) -> ReplicaEnds:
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes
            ],
        )
        for name, indexes in by_topic(wanted).items()
    ]
    response = await connection.request(
        ListOffsetsRequest(replica_id=DEBUGGING_REPLICA, topics=topics)
    )
    told = {
        (topic.name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }
    ends: ReplicaEnds = {}
    for partition in wanted:
        answer = told.get(partition)
        if answer is None:
            detail = f"{connection.node} has not answered for it"
            ends[partition] = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, detail, str(partition))
        elif answer.error_code:
            detail = f"{connection.node} does not tell where its replica ends"
            ends[partition] = BrokerError(error_code(answer.error_code), detail, str(partition))
        else:
            ends[partition] = answer.offset
    return ends
