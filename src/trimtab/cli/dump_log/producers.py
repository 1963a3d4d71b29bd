"""Prints what a log keeps of its producers: last batches, and aborted transactions."""

from __future__ import annotations

import argparse
from bisect import bisect_left

from trimtab.cli.dump_log.batches import write_optional
from trimtab.cli.dump_log.findings import Findings
from trimtab.cli.dump_log.log_file import LogFile
from trimtab.errors import CorruptData
from trimtab.storage.producer_state import decode_snapshot
from trimtab.storage.transaction_index import ABORTED_BYTES, decode_aborted


def dump_aborted(file: LogFile, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print a .txnindex file."""
    content = file.read()
    base_offset = file.base_offset

    def is_damaged(entries: int) -> bool:
        try:
            decode_aborted(content[: entries * ABORTED_BYTES], base_offset)
        except CorruptData:
            return True
        return False

    # The first entries up to damage: with one more entry they cannot be decoded.
    count = -(-len(content) // ABORTED_BYTES)
    good = bisect_left(range(1, count + 1), True, key=is_damaged)
    for each in decode_aborted(content[: good * ABORTED_BYTES], base_offset):
        findings.show(
            "aborted",
            {
                "version": 0,
                "producerId": each.producer_id,
                "firstOffset": each.first_offset,
                "lastOffset": each.last_offset,
                "lastStableOffset": each.last_stable_offset,
            },
            f"version: 0 producerId: {each.producer_id} firstOffset: {each.first_offset} "
            f"lastOffset: {each.last_offset} lastStableOffset: {each.last_stable_offset}",
        )
    if good < count:
        position = good * ABORTED_BYTES
        try:
            decode_aborted(content[: position + ABORTED_BYTES], base_offset)
        except CorruptData as error:
            findings.report(file.path, position, str(error))


def dump_producers(file: LogFile, arguments: argparse.Namespace, findings: Findings) -> None:
    """Print a .snapshot file.

    Raises:
        CorruptData: it is damaged.
    """
    for each in decode_snapshot(file.read()):
        since = each.open_since_offset if each.open_since_offset >= 0 else None
        shown: dict[str, object] = {
            "producerId": each.producer_id,
            "producerEpoch": each.epoch,
            "coordinatorEpoch": each.coordinator_epoch,
            "currentTxnFirstOffset": since,
            "lastTimestamp": each.timestamp,
        }
        line = (
            f"producerId: {each.producer_id} producerEpoch: {each.epoch} "
            f"coordinatorEpoch: {each.coordinator_epoch} "
            f"currentTxnFirstOffset: {write_optional(since)} lastTimestamp: {each.timestamp}"
        )
        batch = each.batch
        if batch is not None:
            delta = batch.last_offset - batch.first_offset
            shown.update(
                firstSequence=batch.first_sequence,
                lastSequence=batch.last_sequence,
                lastOffset=batch.last_offset,
                offsetDelta=delta,
                timestamp=batch.timestamp,
            )
            line += (
                f" firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
                f"lastOffset: {batch.last_offset} offsetDelta: {delta} "
                f"timestamp: {batch.timestamp}"
            )
        findings.show("producer", shown, line)
