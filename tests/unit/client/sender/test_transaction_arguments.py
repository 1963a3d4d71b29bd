"""Arguments of a transaction's calls: wrong ones are refused before a request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.scripted_transactions import (
    TOPIC,
    TransactionCluster,
)
from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.kafka.errors import UsageError


@pytest.mark.parametrize(
    ("offsets", "group", "message"),
    [
        ({TOPIC: -1}, "readers", r"the offset of .*=-1: must be from 0"),
        ({TOPIC: True}, "readers", r"the offset of .*=True: is of type bool"),
        ({TOPIC: "7"}, "readers", "give an int or an OffsetAndMetadata"),
        ({TOPIC: 2**63}, "readers", "must be from 0 to 9223372036854775807"),
        ({TOPIC: OffsetAndMetadata(1, None)}, "readers", "metadata of an offset=None"),  # type: ignore[arg-type]
        ({TOPIC: OffsetAndMetadata(1, "\ud800")}, "readers", "surrogate"),
        ({TOPIC: OffsetAndMetadata(1, "", "x")}, "readers", "leader epoch='x'"),  # type: ignore[arg-type]
        ({7: 1}, "readers", "7 is no partition"),
        ({("topic", "0"): 1}, "readers", "partition='0': is of type str; give an int"),
        ({("topic", 2**31): 1}, "readers", "partition=2147483648: must be from 0"),
        ({(b"topic", 0): 1}, "readers", r"topic=b'topic': is bytes; give a str"),
        ({("x" * 250, 0): 1}, "readers", "250 bytes; at most 249"),
        ([(TOPIC, 1)], "readers", r"offsets=.*give a dictionary"),
        ({TOPIC: 1}, "", "group='': is neither"),
        ({TOPIC: 1}, 7, "group=7: is neither"),
        ({TOPIC: 1}, ConsumerGroup("g", "1"), "generation id='1'"),  # type: ignore[arg-type]
        ({TOPIC: 1}, ConsumerGroup("g", 1, None), "member id=None"),  # type: ignore[arg-type]
        ({TOPIC: 1}, ConsumerGroup("g", 1, "m", 5), "group instance id=5"),  # type: ignore[arg-type]
    ],
)
async def test_offsets_that_cannot_be_are_refused(
    brokers: TransactionCluster, offsets: Any, group: Any, message: str
) -> None:
    async with brokers.producer() as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        with pytest.raises(UsageError, match=message):
            await producer.send_offsets_to_transaction(offsets, group)
        await producer.send_offsets_to_transaction({TOPIC: 7}, "readers")
        await producer.commit_transaction()
    assert brokers.offsets == {TOPIC: 7}
