"""Which transactional batches a leader takes (`trimtab.cluster.broker.verification`)."""

from __future__ import annotations

import pytest

from trimtab.cluster.broker.verification import Verifications

pytestmark = pytest.mark.kip(890)


def test_batches_of_one_epoch_share_one_and_the_lowest_sequence() -> None:
    verifications = Verifications()
    second = verifications.begin_verification(7, 0, 10, False)
    first = verifications.begin_verification(7, 0, 0, False)
    assert first is second
    assert first.sequence == 0
    assert verifications.holds(7, first)
    assert not verifications.holds(8, first)
    assert not verifications.holds(7, None)


def test_a_later_epoch_has_its_own_and_an_earlier_one_none() -> None:
    verifications = Verifications()
    old = verifications.begin_verification(7, 0, 0, True)
    new = verifications.begin_verification(7, 1, 0, True)
    late = verifications.begin_verification(7, 0, 0, True)
    assert [verifications.holds(7, each) for each in (old, new, late)] == [False, True, False]


def test_a_record_ends_it() -> None:
    verifications = Verifications()
    begun = verifications.begin_verification(7, 0, 0, False)
    verifications.forget(7)
    assert not verifications.holds(7, begun)
    again = verifications.begin_verification(7, 0, 5, False)
    assert again.sequence == 5
    verifications.clear()
    assert not verifications.holds(7, again)


@pytest.mark.parametrize(
    ("bumps_epochs", "marked", "holds"),
    [
        pytest.param(False, 3, False, id="version 1: the transaction itself has ended"),
        pytest.param(True, 3, True, id="version 2: the one before has ended"),
        pytest.param(True, 4, False, id="version 2: the transaction itself has ended"),
    ],
)
def test_the_marker_of_its_transaction_ends_it(
    bumps_epochs: bool, marked: int, holds: bool
) -> None:
    verifications = Verifications()
    begun = verifications.begin_verification(7, 3, 0, bumps_epochs)
    verifications.end_marked(7, marked)
    assert verifications.holds(7, begun) is holds
    verifications.end_marked(8, 9)  # another producer's


def test_what_the_coordinator_refuses_is_forgotten() -> None:
    verifications = Verifications()
    refused = verifications.begin_verification(7, 0, 0, False)
    verifications.refuse(7, refused)
    assert not verifications.holds(7, refused)
    begun = verifications.begin_verification(7, 0, 0, False)
    verifications.refuse(7, refused)  # the answer to an earlier question
    assert verifications.holds(7, begun)
