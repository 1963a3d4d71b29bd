"""The bytes with which transactions are ended in partitions (KIP-98, KIP-1228)."""

from __future__ import annotations

import pytest

from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

MARKER = WritableTxnMarker(
    producer_id=7,
    producer_epoch=3,
    transaction_result=True,
    topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[1])],
    coordinator_epoch=5,
    transaction_version=2,
)


@pytest.mark.parametrize(("version", "told"), [(1, 0), (2, 2)])
def test_the_version_of_the_transaction_is_told_since_version_2(version: int, told: int) -> None:
    data = encode(WriteTxnMarkersRequest(markers=[MARKER]), version)
    assert data == (
        b"\2"
        + (7).to_bytes(8, "big")
        + b"\0\3\1"
        + b"\2\2t\2\0\0\0\1\0"
        + b"\0\0\0\5"
        + bytes([told] if version == 2 else [])
        + b"\0\0"
    )
    (marker,) = decode(WriteTxnMarkersRequest, version, data).markers
    assert marker.transaction_version == told
