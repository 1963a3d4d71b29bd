"""What the transaction coordinator answers in every state to everyone, as Apache Kafka 4.3 does.

Source: Kafka's `TransactionCoordinator`: `prepareInitProducerIdTransit`,
`handleAddPartitionsToTransaction`, `handleVerifyPartitionsInTransaction`, `endTransactionWithTV1`
and `endTransaction`. A transaction whose markers are being written has a pending state there.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.coordinator.transaction_scene import (
    BAD_STATE,
    CONCURRENT,
    FENCED,
    MAPPING,
    MAX,
    NAME,
    NONE,
    T0,
    Scene,
)
from trimtab.cluster.coordinator.transaction import NOBODY, ProducerIdAndEpoch
from trimtab.kafka.errors import ErrorCode

STATES = (
    "EMPTY",
    "ONGOING",
    "PREPARE_COMMIT",
    "PREPARE_ABORT",
    "COMPLETE_COMMIT",
    "COMPLETE_ABORT",
)
MADE_BY = pytest.mark.parametrize("made_by", [1, 2])
MOVES = pytest.mark.parametrize("moves", [False, True])


def at(state: str, made_by: int, moves: bool = False) -> Scene:
    """A transactional id in a state; `made_by`: a client with this version of transactions."""
    scene = Scene(made_by)
    for _ in range(3):
        producer = scene.producer()
    if state != "EMPTY":
        scene.add(producer)
    if state not in ("EMPTY", "ONGOING"):
        assert scene.end(producer, "COMMIT" in state).error_code == NONE
    if "COMPLETE" in state:
        scene.write_markers()
    if moves:
        scene.move()
    assert scene.status == state
    return scene


def who(scene: Scene, asks: str) -> ProducerIdAndEpoch:
    """Who asks, as seen from the identity that the coordinator has for the producer."""
    known = scene.known.producer
    return {
        "earlier": known._replace(epoch=known.epoch - 1),
        "current": known,
        "later": known._replace(epoch=known.epoch + 1),
        "other": ProducerIdAndEpoch(known.producer_id + 50, known.epoch),
        "nobody": NOBODY,
    }[asks]


def expected(answers: str) -> list[tuple[str, str, ErrorCode]]:
    """A row for each state, a column for each of those who ask."""
    codes = {"ok": NONE, "F": FENCED, "C": CONCURRENT, "B": BAD_STATE, "M": MAPPING}
    header, *rows = (line.split() for line in answers.strip().splitlines())
    assert [row[0] for row in rows] == list(STATES)
    return [
        (row[0], asks, codes[code])
        for row in rows
        for asks, code in zip(header, row[1:], strict=True)
    ]


END_1 = """
                earlier/commit current/commit later/commit other/commit  earlier/abort current/abort later/abort other/abort
EMPTY           F              B              F            M             F             B             F           M
ONGOING         F              ok             F            M             F             ok            F           M
PREPARE_COMMIT  F              C              F            M             F             C             F           M
PREPARE_ABORT   F              C              F            M             F             C             F           M
COMPLETE_COMMIT F              ok             F            M             F             B             F           M
COMPLETE_ABORT  F              B              F            M             F             ok            F           M
"""  # noqa: E501
END_2 = """
                earlier/commit current/commit later/commit other/commit  earlier/abort current/abort later/abort other/abort
EMPTY           F              B              F            M             F             ok            F           M
ONGOING         F              ok             F            M             F             ok            F           M
PREPARE_COMMIT  C              C              C            C             C             C             C           C
PREPARE_ABORT   C              C              C            C             C             C             C           C
COMPLETE_COMMIT ok             B              F            M             B             ok            F           M
COMPLETE_ABORT  B              B              F            M             ok            ok            F           M
"""  # noqa: E501
ADD = """
                earlier current later other
EMPTY           F       ok      F     M
ONGOING         F       ok      F     M
PREPARE_COMMIT  C       C       C     C
PREPARE_ABORT   C       C       C     C
COMPLETE_COMMIT F       ok      F     M
COMPLETE_ABORT  F       ok      F     M
"""
VERIFY = """
                earlier current later other
EMPTY           F       ok      F     M
ONGOING         F       ok      F     M
PREPARE_COMMIT  F       C       F     M
PREPARE_ABORT   F       C       F     M
COMPLETE_COMMIT F       ok      F     M
COMPLETE_ABORT  F       ok      F     M
"""
# In ONGOING, Kafka aborts for `earlier` and `later`, too, and says C.
INIT = """
                nobody earlier current later other
EMPTY           ok     F       ok      F     F
ONGOING         C      F       C       F     F
PREPARE_COMMIT  C      C       C       C     C
PREPARE_ABORT   C      C       C       C     C
COMPLETE_COMMIT ok     F       ok      F     F
COMPLETE_ABORT  ok     F       ok      F     F
"""


@pytest.mark.kip(890)
@pytest.mark.parametrize(
    ("version", "state", "asks", "code"),
    [(4, *row) for row in expected(END_1)] + [(5, *row) for row in expected(END_2)],
)
@MADE_BY
@MOVES
def test_end_txn(
    version: int, state: str, asks: str, code: ErrorCode, made_by: int, moves: bool
) -> None:
    scene = at(state, made_by, moves)
    asking, verdict = asks.split("/")
    before, records = scene.known.producer, len(scene.log)
    response = scene.end(who(scene, asking), verdict == "commit", version)
    assert response.error_code == code
    decides = code is NONE and (state == "ONGOING" or asking == "current") and version == 5
    decides |= code is NONE and state == "ONGOING"
    assert (len(scene.log) > records) == decides
    told = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    if version == 4 or code is not NONE:
        assert told == NOBODY
    else:
        assert told == before._replace(epoch=before.epoch + decides)
    scene.write_markers()
    assert scene.known.producer.epoch == before.epoch + (decides and version == 5)


@pytest.mark.parametrize(("state", "asks", "code"), expected(ADD))
@MADE_BY
@MOVES
def test_add_partitions_to_txn(
    state: str, asks: str, code: ErrorCode, made_by: int, moves: bool
) -> None:
    scene = at(state, made_by, moves)
    assert scene.add(who(scene, asks)) is code
    assert scene.status == ("ONGOING" if code is NONE else state)


@pytest.mark.kip(890)
@pytest.mark.parametrize(("state", "asks", "code"), expected(VERIFY))
@MADE_BY
@MOVES
def test_add_partitions_to_txn_that_only_verifies(
    state: str, asks: str, code: ErrorCode, made_by: int, moves: bool
) -> None:
    scene = at(state, made_by, moves)
    if code is NONE and state != "ONGOING":
        code = ErrorCode.TRANSACTION_ABORTABLE
    assert scene.shard.verify(NAME, who(scene, asks), [T0]) == {T0: code}
    assert scene.status == state


@pytest.mark.kip(360)
@pytest.mark.parametrize(("state", "asks", "code"), expected(INIT))
@MADE_BY
def test_init_producer_id(state: str, asks: str, code: ErrorCode, made_by: int) -> None:
    scene = at(state, made_by, moves=True)
    before = scene.known.producer
    response: Any = scene.init(who(scene, asks))
    assert response.error_code == code
    aborts = state == "ONGOING" and code is CONCURRENT
    assert scene.status == ("PREPARE_ABORT" if aborts else "EMPTY" if code is NONE else state)
    assert scene.known.producer.epoch == before.epoch + (aborts or code is NONE)


@pytest.mark.kip(890)
@pytest.mark.parametrize("asks", ["last", "next"])
def test_all_wait_while_a_producer_gets_another_id(asks: str) -> None:
    """The next transaction may begin with the new id before the markers of the last are written."""
    scene = Scene()
    last = scene.at_epoch(MAX - 1)
    scene.add(last)
    told = scene.end(last)
    asking = last if asks == "last" else ProducerIdAndEpoch(told.producer_id, told.producer_epoch)
    assert scene.end(asking).error_code == CONCURRENT
    assert scene.end(asking, commit=False).error_code == CONCURRENT
    assert scene.add(asking) is CONCURRENT
    assert scene.init(asking).error_code == CONCURRENT
    scene.write_markers()
    if asks == "next":
        assert scene.add(asking) is NONE
        assert scene.end(last).error_code == MAPPING  # its response came late
    else:
        assert scene.end(asking).error_code == NONE
        assert scene.end(asking, commit=False).error_code == BAD_STATE


@pytest.mark.parametrize("version", [4, 5])
def test_an_unknown_id(version: int) -> None:
    scene = Scene()
    producer = ProducerIdAndEpoch(1, 0)
    assert scene.end(producer, version=version).error_code == MAPPING
    assert scene.add(producer) is MAPPING
    assert scene.shard.verify(NAME, producer, [T0]) == {T0: MAPPING}
