"""Transactions under faults, in virtual time: the simulation finds bugs planted in them.

`lab.reliability.transactors` has the producers, their readers and the rules. `test_cluster_faults`
runs the seeds; its text says how the numbers here were found.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.planted import find_bug
from trimtab.client.sender.transaction_requests import TransactionRequests
from trimtab.cluster.broker.marker_sender import MarkerSender
from trimtab.cluster.coordinator import transaction_shard
from trimtab.cluster.coordinator.offsets import GroupOffsets
from trimtab.cluster.coordinator.transaction import Transaction
from trimtab.cluster.coordinator.transaction_shard import TransactionShard
from trimtab.cluster.storage.log import Log
from trimtab.kafka.wire.messages.group_records import OffsetCommitKey, OffsetCommitValue
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus

pytestmark = pytest.mark.kip(98)

_replay = GroupOffsets.replay


def _send_to_one(sender: MarkerSender, coordinator: Any, ending: Any) -> None:
    """A coordinator that forgets all partitions but one."""
    some = frozenset(sorted(ending.partitions)[:1])
    _send(sender, coordinator, ending._replace(partitions=some))


def _forget_endings(*_: Any) -> None:
    """A coordinator that does not go on to end what another has decided."""


def _accept(*_: Any) -> None:
    """A coordinator that takes any producer for the present one."""


def _store_at_once(
    offsets: GroupOffsets, key: OffsetCommitKey, value: OffsetCommitValue | None, _: int = -1
) -> None:
    """Offsets that do not wait for the end of their transaction."""
    _replay(offsets, key, value)


def _name_nobody(*_: Any) -> list[Any]:
    """A leader that does not tell which transactions were aborted."""
    return []


@property  # type: ignore[misc]
def _due_soon(transaction: Any) -> int | None:
    """Transactions of which all time out, prepared ones too."""
    is_open = transaction.status is TransactionStatus.ONGOING
    return transaction.started_ms + 8_000 if is_open else None


def _give_up(*_: Any) -> None:
    """A coordinator that sends each marker once."""


@property  # type: ignore[misc]
def _never_late(_: Any) -> bool:
    """A producer that goes on in its epoch after a request without an answer."""
    return False


_send = MarkerSender.send

PLANTED: dict[str, tuple[int, object, str, object]] = {
    "a partition without a marker": (2, MarkerSender, "send", _send_to_one),
    "endings forgotten": (3, TransactionShard, "resume", _forget_endings),
    "nobody is fenced": (9, transaction_shard, "_check_caller", _accept),
    "offsets at once": (9, GroupOffsets, "replay", _store_at_once),
    "aborted ones are not named": (2, Log, "aborted_between", _name_nobody),
    "markers are sent once": (24, MarkerSender, "_try_later", _give_up),
    "prepared ones time out": (24, Transaction, "due_ms", _due_soon),
    "late requests are forgotten": (67, TransactionRequests, "may_be_late", _never_late),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place, name, instead = PLANTED[bug]
    monkeypatch.setattr(place, name, instead)
    find_bug(bug, first)
