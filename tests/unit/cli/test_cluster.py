from __future__ import annotations

import pytest

from trimtab.cli.cluster import choose_racks, read_delays
from trimtab.errors import UsageError


def test_one_rack_for_each_broker() -> None:
    assert choose_racks(3, "a,b,c") == ["a", "b", "c"]
    assert choose_racks(3, None) is None


@pytest.mark.parametrize(("brokers", "racks"), [(2, "a,b,c"), (3, "a"), (0, None)])
def test_a_number_of_racks_that_does_not_fit_is_refused(brokers: int, racks: str | None) -> None:
    with pytest.raises(UsageError):
        choose_racks(brokers, racks)


def test_delays_by_broker() -> None:
    assert read_delays(["0=20", "2=1.5"], 3) == {0: 20.0, 2: 1.5}


@pytest.mark.parametrize("word", ["3=20", "x=20", "0=x", "-1=5"])
def test_a_delay_of_no_broker_or_no_number_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"--slow"):
        read_delays([word], 3)
