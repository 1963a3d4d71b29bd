"""Transactions that one process prepares and another ends (KIP-939).

    here:        begin(two_phase) ─▶ send ─▶ prepare ─▶ a `PreparedTransaction`, stored by the user
    elsewhere:   complete(prepared, commit) ─▶ EndTxn by transactional id, producer id and epoch

The process that ends the transaction needs no producer of that id. If it takes an epoch, that
aborts the transaction, or, with `keep_prepared`, keeps it for the new epoch to end. It may send the
same EndTxn twice, so that after a crash a stored decision can be carried out again.

**The older protocol.** Under `transaction.version` 2 EndTxn (version 5) raises the epoch, so a
repeated EndTxn depends on the version of the first. Up to version 4 the epoch stays, and the
coordinator answers a repeated EndTxn with NONE until a producer takes over the transactional id.
The producer itself takes a new epoch before its next transaction: otherwise who repeats EndTxn
would end that one.

**Time.** Unless the producer was initialized for two-phase commit (InitProducerId version 6, option
`transaction.two.phase.commit.enable`), the coordinator aborts a prepared transaction like any
other after `transaction.timeout.ms`.

Source: KIP-939, KIP-98; `org.apache.kafka.clients.producer.PreparedTxnState`, and
`TransactionCoordinator.endTransaction`.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from trimtab.client.network.coordinator import CoordinatorLink, Verdict
from trimtab.kafka.arguments import MAX_INT64, shown
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError, error_code
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest

OLDER_END_TXN = 4
"""The newest version of EndTxn that leaves the epoch as it is."""

_MAX_EPOCH = 2**15 - 1


class ProducerIdentity(NamedTuple):
    """A transactional producer's identity: its epoch fences all older producers of its id."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def numbers(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all stored, and that waits to be committed or aborted.

    `parse` reads the text that `str` returns; it can be pickled too.

    Attributes:
        is_empty: nothing was sent in it, so the coordinator need not end it.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    is_empty: bool = False

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}:{int(self.is_empty)}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """The prepared transaction whose `str` is `text`.

        Raises:
            UsageError: `text` has another form.
        """
        parts = text.split(":", 3) if isinstance(text, str) else []
        if len(parts) == 4 and all(part.isascii() and part.isdecimal() for part in parts[:3]):
            read = cls(parts[3], int(parts[0]), int(parts[1]), parts[2] != "0")
            if _is_possible(read):
                return read
        raise UsageError(
            f"{shown(text)} is no prepared transaction: str() of one looks like 4711:0:0:orders"
        )


def checked_prepared(given: object) -> PreparedTransaction:
    if not isinstance(given, PreparedTransaction) or not _is_possible(given):
        raise UsageError(
            f"{shown(given)} is no PreparedTransaction: give what prepare_transaction() returned,"
            " or PreparedTransaction.parse(text)"
        )
    return given


def checked_identity(given: object) -> ProducerIdentity:
    if not isinstance(given, ProducerIdentity) or not _is_possible(given):
        raise UsageError(
            f"{shown(given)} is no ProducerIdentity: give what init_transactions() returned"
        )
    return given


def checked_transactional_id(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{shown(given)} is no transactional.id: give text that is not empty")
    return given


def _is_possible(given: ProducerIdentity | PreparedTransaction) -> bool:
    return (
        isinstance(given.transactional_id, str)
        and bool(given.transactional_id)
        and _is_within(given.producer_id, MAX_INT64)
        and _is_within(given.epoch, _MAX_EPOCH)
        and isinstance(getattr(given, "is_empty", False), bool)
    )


def _is_within(number: object, most: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= most


async def complete(
    link: CoordinatorLink, prepared: PreparedTransaction, commit: bool, timeout: float
) -> None:
    """End a prepared transaction, in any process; repeating the call changes nothing.

    Args:
        link: to the coordinator of its transactional id.
        timeout: seconds.

    Raises:
        BrokerError: it was committed and should be aborted, or the other way round; or its id was
            taken over, or it was open for too long: then it is aborted, unless it had ended before.
        Unavailable: it is unknown whether it has ended; may be repeated.
    """
    if prepared.is_empty:
        return
    request = EndTxnRequest(
        transactional_id=prepared.transactional_id,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.epoch,
        committed=commit,
    )
    asking = asyncio.ensure_future(
        link.ask(EndTxnRequest, lambda version: request, verdict_of, at_most=OLDER_END_TXN)
    )
    try:
        await asyncio.wait([asking], timeout=timeout)
        if not asking.done():
            raise Unavailable(
                f"complete_transaction(): {prepared} is not ended after {timeout:g} s"
                f" (max.block.ms): {link.trouble or 'its coordinator is silent'}; call it again,"
                " which does no harm"
            )
        asking.result()
    except BrokerError as error:
        hint = _HINTS.get(error.code)
        if hint is None or error.detail:
            raise
        raise BrokerError(error.code, hint, f"prepared transaction {prepared}") from error
    finally:
        asking.cancel()


def verdict_of(response: Any) -> Verdict:
    return error_code(response.error_code), ""


_GONE = (
    "it is not open any more: a newer producer has its transactional id, or it was open for longer"
    " than transaction.timeout.ms; unless it was committed before, it is aborted"
)
_HINTS = {
    ErrorCode.PRODUCER_FENCED: _GONE,
    ErrorCode.INVALID_PRODUCER_EPOCH: _GONE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _GONE,
    ErrorCode.INVALID_TXN_STATE: "it has already ended with the opposite decision",
}
