"""The controller of a cluster. One, without a quorum; brokers ask it through plain calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple, Protocol

from trimtab.config import Value
from trimtab.controller.journal import Journal, JournalStorage
from trimtab.controller.topics import Decision, decide_create, decide_delete
from trimtab.errors import UsageError
from trimtab.metadata.image import (
    METADATA_LEVEL,
    METADATA_VERSION,
    BrokerRegistration,
    ClusterImage,
    register_broker_record,
)
from trimtab.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from trimtab.wire.messages.metadata_records import FeatureLevelRecord, ProducerIdsRecord

PRODUCER_ID_BLOCK = 1000
"""Producer ids that a broker gets at a time (KIP-730)."""

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """Who is told of every decision, in order, before the one who asked is answered."""

    def replay(self, records: Iterable[Any]) -> None: ...


class ProducerIdBlock(NamedTuple):
    """Producer ids `first` up to and without `end`, for one broker to give out."""

    first: int
    end: int


class Controller:
    """Decides about brokers, topics and producer ids.

    Opening it replays the journal.

    Args:
        storage: the directory that holds the journal.
        broker_config: the broker options (`trimtab.config.BROKER`), for the defaults of topics.
        now_ms: wall time in milliseconds.
        random: for topic ids and where placement starts.

    Raises:
        CorruptData: the journal is damaged before its end.
    """

    def __init__(
        self,
        storage: JournalStorage,
        broker_config: Mapping[str, Value],
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self.image = ClusterImage()
        self._broker_config = broker_config
        self._random = random
        self._followers: list[Follower] = []
        self._journal = Journal(storage, now_ms)
        for record in self._journal.replay():
            self.image.replay(record)
        if METADATA_VERSION not in self.image.features:
            self._commit([FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_LEVEL)])

    def follow(self, follower: Follower) -> None:
        """Tell this follower everything so far, and from now on."""
        follower.replay(self.image.records())
        self._followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        """Tell it nothing more."""
        self._followers.remove(follower)

    def register_brokers(
        self, brokers: Iterable[tuple[int, str, int, str | None]]
    ) -> list[BrokerRegistration]:
        """Take in brokers that have started, as (id, host, port, rack), in one decision.

        Raises:
            UsageError: an id is given twice.
        """
        registrations: list[BrokerRegistration] = []
        for number, (broker_id, host, port, rack) in enumerate(brokers):
            if any(broker_id == earlier.id for earlier in registrations):
                raise UsageError(f"broker id {broker_id} is given twice; give each its own")
            # Kafka's broker epoch is the offset of the record that registers it.
            epoch = self._journal.next_offset + number
            registrations.append(
                BrokerRegistration(broker_id, epoch, self._random.randbytes(16), host, port, rack)
            )
        self._commit([register_broker_record(broker) for broker in registrations])
        return registrations

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """CreateTopics: every broker has the new partitions before this returns."""
        decision = decide_create(self.image, request, self._broker_config, self._random)
        self._carry_out(decision)
        return decision.response  # type: ignore[no-any-return]

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """DeleteTopics: every broker has dropped the partitions before this returns."""
        enabled = bool(self._broker_config["delete.topic.enable"])
        decision = decide_delete(self.image, request, enabled)
        self._carry_out(decision)
        return decision.response  # type: ignore[no-any-return]

    async def allocate_producer_ids(self, broker_id: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else gets, across restarts too."""
        first = self.image.next_producer_id
        block = ProducerIdBlock(first, first + PRODUCER_ID_BLOCK)
        broker = self.image.brokers.get(broker_id)
        self._commit(
            [
                ProducerIdsRecord(
                    broker_id=broker_id,
                    broker_epoch=-1 if broker is None else broker.epoch,
                    next_producer_id=block.end,
                )
            ]
        )
        return block

    def close(self) -> None:
        """Close the journal. What was decided is on disk already."""
        self._journal.close()

    def _carry_out(self, decision: Decision) -> None:
        if decision.records:
            self._commit(decision.records)

    def _commit(self, records: list[Any]) -> None:
        self._journal.append(records)
        for record in records:
            self.image.replay(record)
        for follower in self._followers:
            follower.replay(records)
