"""Prints what a log keeps of its producers: last batches, and aborted transactions."""

from __future__ import annotations

import argparse
from bisect import bisect_left

from trimtab.cli.dump_log.batches import write_optional
from trimtab.cli.dump_log.findings import Findings
from trimtab.cli.dump_log.log_file import LogFile
from trimtab.cli.results import write_fields
from trimtab.cluster.storage.producer_state import decode_snapshot
from trimtab.cluster.storage.transaction_index import ABORTED_BYTES, decode_aborted
from trimtab.kafka.errors import CorruptData


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
    for transaction in decode_aborted(content[: good * ABORTED_BYTES], base_offset):
        shown = {
            "version": 0,
            "producerId": transaction.producer_id,
            "firstOffset": transaction.first_offset,
            "lastOffset": transaction.last_offset,
            "lastStableOffset": transaction.last_stable_offset,
        }
        findings.show("aborted", shown)
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
    for producer in decode_snapshot(file.read()):
        since = producer.open_since_offset if producer.open_since_offset >= 0 else None
        shown: dict[str, object] = {
            "producerId": producer.producer_id,
            "producerEpoch": producer.epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": since,
            "lastTimestamp": producer.timestamp,
        }
        batch = producer.batch
        if batch is not None:
            shown.update(
                firstSequence=batch.first_sequence,
                lastSequence=batch.last_sequence,
                lastOffset=batch.last_offset,
                offsetDelta=batch.last_offset - batch.first_offset,
                timestamp=batch.timestamp,
            )
        line = {**shown, "currentTxnFirstOffset": write_optional(since)}
        findings.show("producer", shown, write_fields(line))
