"""Answers about several partitions: which refusal decides (`sender/transaction_requests.py`)."""

from __future__ import annotations

import pytest

from trimtab.client.sender.transaction_requests import refusal_of_offsets, refusal_of_partitions
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from trimtab.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NONE = ErrorCode.NONE
SKIPPED = ErrorCode.OPERATION_NOT_ATTEMPTED
AGAIN = ErrorCode.CONCURRENT_TRANSACTIONS
NEVER = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("codes", "deciding"),
    [
        ([], None),
        ([NONE, NONE], None),
        ([NONE, SKIPPED], 1),
        ([SKIPPED, AGAIN, NONE], 1),
        ([AGAIN, SKIPPED, NEVER], 2),
    ],
)
def test_a_refusal_for_good_comes_first_then_one_for_now(
    codes: list[ErrorCode], deciding: int | None
) -> None:
    added = AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name="t",
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=code)
                    for n, code in enumerate(codes)
                ],
            )
        ]
    )
    committed = TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=n, error_code=code)
                    for n, code in enumerate(codes)
                ],
            )
        ]
    )
    for found in (refusal_of_partitions(added), refusal_of_offsets(committed)):
        if deciding is None:
            assert found[0] is NONE
        else:
            assert found[0] is codes[deciding]
            assert found[1].endswith(f"t-{deciding}")
