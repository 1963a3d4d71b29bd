"""Answers about several partitions, some of which may be refused: the one refusal that decides."""

from __future__ import annotations

from collections.abc import Collection

from trimtab.client.network.coordinator import Verdict
from trimtab.errors import ErrorCode, error_code
from trimtab.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from trimtab.wire.messages.txn_offset_commit import TxnOffsetCommitResponse


def refusal_of_partitions(response: AddPartitionsToTxnResponse) -> Verdict:
    """What AddPartitionsToTxn came to, up to version 3."""
    return _most_severe(
        [
            (error_code(result.partition_error_code), f"{topic.name}-{result.partition_index}")
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
    )


def refusal_of_offsets(response: TxnOffsetCommitResponse) -> Verdict:
    """What TxnOffsetCommit came to."""
    return _most_severe(
        [
            (error_code(result.error_code), f"the offset of {topic.name}-{result.partition_index}")
            for topic in response.topics
            for result in topic.partitions
        ]
    )


def _most_severe(results: Collection[Verdict]) -> Verdict:
    """The most severe result: an error that is not retriable, else a retriable one, else
    OPERATION_NOT_ATTEMPTED, which only says that another item was refused."""

    def rank(result: Verdict) -> int:
        code, _ = result
        if code is ErrorCode.NONE:
            return 0
        if code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            return 1
        return 2 if code.retriable else 3

    return max(results, key=rank, default=(ErrorCode.NONE, ""))
