"""Transactions on brokers.

The coordinator (`trimtab.cluster.broker.coordinator`, `trimtab.cluster.broker.producer_ids`), the
leaders that ask it (`trimtab.cluster.broker.transaction_checks`), markers
(`trimtab.cluster.broker.marker_sender`, `trimtab.cluster.broker.handlers.markers`), and the offsets
of groups.

Long because coordinator, leaders and markers are parts of the same cases.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.steps import count_steps
from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import kill, leading, start, until
from tests.unit.cluster.broker.test_broker import delete_topic
from trimtab.cluster.broker.coordinator_topic import TRANSACTIONS_TOPIC, partition_of
from trimtab.cluster.broker.handlers.transactions import add_partitions
from trimtab.cluster.broker.refused import Refused
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from trimtab.kafka.wire.messages.describe_transactions import DescribeTransactionsRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.list_transactions import ListTransactionsRequest
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus
from trimtab.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

pytestmark = pytest.mark.kip(98)

FEW = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}
OLD, NEW = 1, 2
"""Versions of transactions."""


class Sender:
    """A transactional producer that sends one request after the other.

    Args:
        version: of transactions; with the older one it adds partitions itself.
    """

    def __init__(self, lab: Lab, version: int = NEW, transactional_id: str = "x") -> None:
        self.lab = lab
        self.id = transactional_id
        self.version = version
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def coordinator(self) -> int:
        image = self.lab.controller.controller.image.topics[TRANSACTIONS_TOPIC]
        return image.partitions[partition_of(self.id, len(image.partitions))].leader

    async def init(self, timeout_ms: int = 60_000) -> ErrorCode:
        await self.lab.connect().ask(FindCoordinatorRequest(key=self.id, key_type=1), 2)
        await until(lambda: self._is_loaded())
        answer = await self.lab.connect(self.coordinator).ask(
            InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms), 5
        )
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    def _shard(self) -> Any:
        led = self.lab.brokers[self.coordinator].transactions.find(self.id)
        return None if led is None else led.shard

    def _is_loaded(self) -> bool:
        return self._shard() is not None

    async def add(self, topic: str = "t", index: int = 0) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )
        answer = await self.lab.connect(self.coordinator).ask(request, 3)
        ((result,),) = (
            topic.results_by_partition for topic in answer.results_by_topic_v3_and_below
        )
        return ErrorCode(result.partition_error_code)

    def make(self, sequence: int, *values: bytes, topic: str = "t", index: int = 0) -> Any:
        batch = self.lab.batch(
            *(values or (b"v",)),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = self.lab.produce(topic, batch, acks=-1, partition=index)
        request.transactional_id = self.id
        return request

    async def send(self, *values: bytes, topic: str = "t", index: int = 0) -> ErrorCode:
        sequence = self.sequences.get((topic, index), 0)
        request = self.make(sequence, *values, topic=topic, index=index)
        leader = self.lab.controller.controller.image.topics[topic].partitions[index].leader
        answer = await self.lab.connect(leader).ask(request, 12 if self.version == NEW else 11)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.sequences[topic, index] = sequence + max(1, len(values))
        return code

    async def end(self, commit: bool = True) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        version = 5 if self.version == NEW else 4
        answer = await self.lab.connect(self.coordinator).ask(request, version)
        if self.version == NEW and not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    async def commit_offset(self, offset: int, group: str = "g") -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=offset, committed_metadata=None
                        )
                    ],
                )
            ],
        )
        answer = await self.lab.connect().ask(request, 5 if self.version == NEW else 4)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def state(self) -> str:
        answer = await self.lab.connect(self.coordinator).ask(
            DescribeTransactionsRequest(transactional_ids=[self.id]), 0
        )
        (state,) = answer.transaction_states
        assert state.error_code == ErrorCode.NONE
        return str(state.transaction_state)

    async def until(self, state: str) -> None:
        status = TransactionStatus[re.sub("(?<!^)(?=[A-Z])", "_", state).upper()]
        transactions = self._shard().transactions
        await until(lambda: transactions[self.id].status is status)


def markers(lab: Lab, topic: str = "t", index: int = 0) -> list[int]:
    """The epochs in the markers of a partition."""
    partition = leading(lab, topic, index)
    return [each.producer_epoch for each in partition.log.headers(0) if each.is_control]


async def open_in(lab: Lab, topic: str = "t") -> list[int]:
    return list(leading(lab, topic).log.producers.transactions.first_offsets.values())


def run(lab: Lab, scenario: Any, brokers: int = 1, **config: object) -> None:
    lab.run(scenario, brokers=brokers, config={**FEW, **config})


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_ended_in_all_its_partitions(lab: Lab, version: int, commit: bool) -> None:
    async def scenario() -> None:
        for name in ("t", "u"):
            await lab.create_topic(name, partitions=2, replicas=2)
        sender = Sender(lab, version)
        assert await sender.init() is ErrorCode.NONE
        for _ in range(3):
            for topic, index in (("t", 0), ("t", 1), ("u", 1)):
                if version == OLD:
                    assert await sender.add(topic, index) is ErrorCode.NONE
                assert await sender.send(topic=topic, index=index) is ErrorCode.NONE
            assert await sender.end(commit) is ErrorCode.NONE
            await sender.until("CompleteCommit" if commit else "CompleteAbort")
        epochs = [0, 0, 0] if version == OLD else [1, 2, 3]
        for topic, index in (("t", 0), ("t", 1), ("u", 1)):
            assert markers(lab, topic, index) == epochs
        assert markers(lab, "u", 0) == []

    run(lab, scenario, brokers=3)


def test_a_batch_that_the_coordinator_does_not_know_is_refused(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab, OLD)
        await sender.init()
        assert await sender.send() is ErrorCode.TRANSACTION_ABORTABLE
        assert await sender.add() is ErrorCode.NONE
        assert await sender.send() is ErrorCode.NONE
        assert await sender.send() is ErrorCode.NONE  # the transaction is open: nobody is asked
        assert await sender.end() is ErrorCode.NONE
        await sender.until("CompleteCommit")
        # It is late: its transaction has ended, so it would be in none.
        assert await sender.send() is ErrorCode.TRANSACTION_ABORTABLE
        stranger = Sender(lab, NEW)
        stranger.producer_id, stranger.epoch = 999, 0
        assert await stranger.send() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert len(leading(lab).log.producers) == 1

    run(lab, scenario)


@pytest.mark.kip(890)
def test_a_marker_forgets_what_the_coordinator_has_said(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        partition = leading(lab)
        sender = Sender(lab, OLD)
        await sender.init()
        await sender.add()
        batch = memoryview(
            lab.batch(
                b"v",
                producer_id=sender.producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )
        (header,) = read_headers(batch)
        verification = partition.begin_verification(header.producer_id, 0, 0, False)
        await sender.end()
        await sender.until("CompleteCommit")
        with pytest.raises(Refused, match="not part of a transaction") as refused:
            list(partition.append(batch, True, 1, verification))
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE

    run(lab, scenario)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_batches_that_wait_for_the_coordinator_stay_in_order(lab: Lab, version: int) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab, version)
        await sender.init()
        if version == OLD:
            await sender.add()
        api = 12 if version == NEW else 11
        client = lab.connect()
        for sequence in range(4):
            client.send(sender.make(sequence), api)
        log = leading(lab).log
        for _ in range(1000):
            if log.log_end_offset:  # the first one is stored, and the transaction is open
                break
            await asyncio.sleep(0.00001)
        client.send(sender.make(4), api)
        await until(lambda: len(client.responses) == 5)
        assert log.log_end_offset == 5
        (known,) = log.producers.describe()
        assert known.last_sequence == 4

    run(lab, scenario)


def test_a_lost_connection_does_not_hold_up_its_producer(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        lost = lab.connect()
        for sequence in range(3):
            lost.send(sender.make(sequence), 12)
        lost.transport.close()
        await asyncio.sleep(0.1)
        assert lab.brokers[0].services.transaction_checks.is_free(sender.producer_id)
        assert await sender.send() in (ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    run(lab, scenario)


@pytest.mark.kip(890)
def test_a_producer_begins_each_transaction_with_sequence_0(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        sender.sequences["t", 0] = 5
        assert await sender.send() is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        sender.sequences.clear()
        assert await sender.send() is ErrorCode.NONE

    run(lab, scenario)


def test_a_transaction_without_its_producer_is_aborted(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init(timeout_ms=5_000)
        await sender.send()
        await asyncio.sleep(4.9)
        assert await sender.state() == "Ongoing"
        await asyncio.sleep(0.2)
        assert await sender.state() == "CompleteAbort"
        assert markers(lab) == [1]
        assert await sender.send() is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await sender.end() is ErrorCode.INVALID_TXN_STATE  # as in Kafka: it is aborted
        assert await sender.init() is ErrorCode.NONE

    run(lab, scenario)


def test_a_new_producer_fences_the_one_before_it(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        old, new = Sender(lab), Sender(lab)
        await old.init()
        await old.send()
        assert await new.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        await new.until("CompleteAbort")
        assert await new.init() is ErrorCode.NONE
        assert await old.send() is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.end() is ErrorCode.PRODUCER_FENCED
        assert await new.send() is ErrorCode.NONE
        assert await new.end() is ErrorCode.NONE

    run(lab, scenario)


def test_a_coordinator_ends_what_the_one_before_it_has_decided(lab: Lab) -> None:
    """The leader of a partition is away while the outcome is decided; then the coordinator dies."""

    async def scenario() -> None:
        await lab.create_topic("t", partitions=3)
        sender = Sender(lab)
        await sender.init()
        away = next(each for each in (0, 1, 2) if each != sender.coordinator)
        index = next(
            each.id
            for each in lab.controller.controller.image.topics["t"].partitions
            if each.leader == away
        )
        assert await sender.send(index=index) is ErrorCode.NONE
        kill(lab, away)
        assert await sender.end() is ErrorCode.NONE
        await asyncio.sleep(1)
        assert await sender.state() == "PrepareCommit"
        before = sender.coordinator
        kill(lab, before)
        await until(lambda: sender.coordinator not in (-1, before))
        await start(lab, away)
        await until(sender._is_loaded)
        await sender.until("CompleteCommit")
        assert markers(lab, index=index) == [1]
        assert await sender.send(index=index) is ErrorCode.NONE

    run(lab, scenario, brokers=3)


def test_a_log_that_refuses_the_end_of_a_transaction_is_tried_again(lab: Lab) -> None:
    """It is loaded again and again meanwhile, but not without a pause."""

    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        index = partition_of("x", 4)
        partition = lab.brokers[sender.coordinator].partitions[TRANSACTIONS_TOPIC, index]
        append, refused, begin = partition.append_own, 0, partition.log.log_end_offset

        def refuse(records: memoryview) -> Any:
            nonlocal refused
            if partition.log.log_end_offset > begin:  # the abort is decided
                refused += 1
                raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS)
            return append(records)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(partition), "append_own", lambda _, records: refuse(records))
            assert await sender.end(commit=False) is ErrorCode.NONE
            await asyncio.sleep(5)
        assert 10 < refused < 60
        await until(lambda: sender._is_loaded())
        await sender.until("CompleteAbort")

    run(lab, scenario)


def test_a_partition_that_was_deleted_needs_no_marker(lab: Lab) -> None:
    async def scenario() -> None:
        for name in ("t", "u"):
            await lab.create_topic(name)
        sender = Sender(lab)
        await sender.init()
        await sender.send()
        await sender.send(topic="u")
        await delete_topic(lab, "u")
        assert await sender.end() is ErrorCode.NONE
        await sender.until("CompleteCommit")
        assert markers(lab) == [1]

    run(lab, scenario)


@pytest.mark.parametrize(
    ("partitions", "codes"),
    [
        ([0] * 20_000, {0: ErrorCode.NONE}),
        ([0, 1, 0, 1], dict.fromkeys([0, 1], ErrorCode.NONE)),
        (
            list(range(20_000)),
            dict.fromkeys(range(2), ErrorCode.OPERATION_NOT_ATTEMPTED)
            | dict.fromkeys(range(2, 20_000), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ),
    ],
)
def test_many_partitions_are_added_in_steps_and_answered_once_each(
    lab: Lab, partitions: list[int], codes: dict[int, ErrorCode]
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", partitions=2)
        sender = Sender(lab, OLD)
        await sender.init()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=sender.id,
            v3_and_below_producer_id=sender.producer_id,
            v3_and_below_producer_epoch=sender.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=partitions)],
        )
        transactions = lab.brokers[sender.coordinator].transactions
        header = RequestHeader(24, 3, 1, "c", 0, "host")
        steps, answer = count_steps(add_partitions(transactions, header, request))
        assert steps >= len(partitions) // 200
        assert not isinstance(answer, AddPartitionsToTxnResponse)
        (topic,) = (await answer).results_by_topic_v3_and_below
        found = [
            (each.partition_index, each.partition_error_code) for each in topic.results_by_partition
        ]
        assert found == list(codes.items())

    run(lab, scenario)


@pytest.mark.parametrize("what", ["no markers", "no topics", "no partitions"])
def test_a_marker_that_is_missing_in_the_answer_is_sent_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        await sender.send()
        peers = lab.brokers[sender.coordinator].transactions._markers._peers
        ask, asked = peers.ask, []

        async def answer_in_part(*args: Any) -> Any:
            response = await ask(*args)
            asked.append(response)
            if len(asked) > 1:
                return response
            if what == "no markers":
                response.markers.clear()
            elif what == "no topics":
                response.markers[0].topics.clear()
            else:
                response.markers[0].topics[0].partitions.clear()
            return response

        monkeypatch.setattr(peers, "ask", answer_in_part)
        assert await sender.end() is ErrorCode.NONE
        await sender.until("CompleteCommit")
        assert len(asked) == 2

    run(lab, scenario)


def write(marker: dict[str, Any], topic: str = "t", index: int = 0) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                transaction_result=True,
                topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
                **marker,
            )
        ]
    )


def test_markers_that_are_late_are_refused(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        await sender.send()
        client = lab.connect(is_node=True)

        async def ask(topic: str = "t", **marker: Any) -> int:
            given = {
                "producer_id": sender.producer_id,
                "producer_epoch": 1,
                "coordinator_epoch": 5,
                "transaction_version": 2,
                **marker,
            }
            answer = await client.ask(write(given, topic), 2)
            return int(answer.markers[0].topics[0].partitions[0].error_code)

        assert await ask("absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ask(producer_epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await open_in(lab) == [0]
        assert await ask() == ErrorCode.NONE
        assert await open_in(lab) == []
        assert await ask() == ErrorCode.NONE, "it is sent again"
        assert await ask(coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await ask(producer_epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH

    run(lab, scenario)


def has_groups(lab: Lab) -> bool:
    """Whether the group is loaded."""
    led = lab.brokers[0].groups.find("g")
    return led is not None and led.shard is not None


async def offsets_of(lab: Lab, stable: bool = True, group: str = "g") -> tuple[int, int]:
    """The offset of t-0, and the error code."""
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
            )
        ],
        require_stable=stable,
    )
    answer = await lab.connect().ask(request, 9)
    (part,) = answer.groups[0].topics[0].partitions
    return part.committed_offset, part.error_code


@pytest.mark.kip(447)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_offsets_are_decided_by_the_end_of_their_transaction(lab: Lab, version: int) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab, version)
        await sender.init()
        await lab.connect().ask(FindCoordinatorRequest(key="g", key_type=0), 2)
        await until(lambda: has_groups(lab))
        for offset, commit, expected in ((5, True, 5), (9, False, 5), (7, True, 7)):
            before = await offsets_of(lab)
            if version == OLD:
                assert await sender.commit_offset(offset) is ErrorCode.TRANSACTION_ABORTABLE
                added = await lab.connect().ask(
                    AddOffsetsToTxnRequest(
                        transactional_id="x",
                        producer_id=sender.producer_id,
                        producer_epoch=sender.epoch,
                        group_id="g",
                    ),
                    4,
                )
                assert added.error_code == ErrorCode.NONE
            assert await sender.commit_offset(offset) is ErrorCode.NONE
            assert await offsets_of(lab) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await offsets_of(lab, stable=False) == before
            assert await sender.end(commit) is ErrorCode.NONE
            await sender.until("CompleteCommit" if commit else "CompleteAbort")
            assert await offsets_of(lab) == (expected, ErrorCode.NONE)
        led = lab.brokers[0].groups.find("g")
        assert led is not None
        led._start_again(ErrorCode.NOT_COORDINATOR)
        await until(lambda: led.shard is not None)
        assert await offsets_of(lab) == (7, ErrorCode.NONE)

    run(lab, scenario)


def test_undecided_offsets_survive_a_restart(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        await sender.init()
        await lab.connect().ask(FindCoordinatorRequest(key="g", key_type=0), 2)
        await until(lambda: has_groups(lab))
        assert await sender.commit_offset(3) is ErrorCode.NONE
        kill(lab, 0)
        await start(lab, 0)
        await until(lambda: sender._is_loaded() and has_groups(lab))
        assert await offsets_of(lab) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await sender.end() is ErrorCode.NONE
        await sender.until("CompleteCommit")
        assert await offsets_of(lab) == (3, ErrorCode.NONE)

    run(lab, scenario)


def test_transactions_are_listed(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        senders = [Sender(lab, transactional_id=name) for name in ("a-1", "a-2", "b")]
        for sender in senders:
            await sender.init()
        await senders[1].send()
        await asyncio.sleep(2)

        async def listed(**filters: Any) -> list[str]:
            given = {"state_filters": [], "producer_id_filters": [], **filters}
            answer = await lab.connect().ask(ListTransactionsRequest(**given), 2)
            assert answer.error_code == ErrorCode.NONE
            return sorted(each.transactional_id for each in answer.transaction_states)

        assert await listed() == ["a-1", "a-2", "b"]
        assert await listed(state_filters=["Ongoing", "Sideways"]) == ["a-2"]
        assert await listed(state_filters=["Sideways"]) == []
        assert await listed(producer_id_filters=[senders[2].producer_id]) == ["b"]
        assert await listed(transactional_id_pattern="a.*") == ["a-1", "a-2"]
        assert "a-2" in await listed(duration_filter=1000)
        assert "a-2" not in await listed(duration_filter=10_000)
        wrong = ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], transactional_id_pattern="["
        )
        answer = await lab.connect().ask(wrong, 2)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    run(lab, scenario)


def test_a_damaged_log_does_not_keep_others_from_being_listed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        senders = [Sender(lab, transactional_id=name) for name in ("a", "b")]
        assert partition_of("a", 4) != partition_of("b", 4)
        for sender in senders:
            await sender.init()
        led = lab.brokers[0].transactions.find("a")
        assert led is not None

        def fail(*_: Any) -> None:
            raise CorruptData("flipped")

        monkeypatch.setattr(led, "_load_batch", fail)
        led._start_again(ErrorCode.NOT_COORDINATOR)
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        answer = await lab.connect().ask(request, 2)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(1)
        answer = await lab.connect().ask(request, 2)
        assert [each.transactional_id for each in answer.transaction_states] == ["b"]
        described = await lab.connect().ask(DescribeTransactionsRequest(transactional_ids=["a"]), 0)
        assert described.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR

    run(lab, scenario)


def test_ids_that_nobody_uses_are_deleted(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        idle, busy = Sender(lab, transactional_id="idle"), Sender(lab, transactional_id="busy")
        for sender in (idle, busy):
            await sender.init(timeout_ms=600_000)
        await busy.send()
        await asyncio.sleep(121)
        answer = await lab.connect().ask(
            DescribeTransactionsRequest(transactional_ids=["idle", "busy", ""]), 0
        )
        assert [each.error_code for each in answer.transaction_states] == [
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
        ]

    run(
        lab,
        scenario,
        **{
            "transactional.id.expiration.ms": 60_000,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 10_000,
        },
    )


def test_partitions_that_do_not_exist_are_not_added(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab, OLD)
        await sender.init()
        assert await sender.add("absent") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await sender.add("t", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await sender.state() == "Empty"

    run(lab, scenario)


def test_a_leader_without_a_coordinator_has_the_producer_try_again(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        sender = Sender(lab)
        sender.producer_id, sender.epoch = 7, 0
        assert await sender.send() is ErrorCode.NOT_ENOUGH_REPLICAS  # there is no topic yet

    run(lab, scenario)
