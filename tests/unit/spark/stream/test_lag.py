"""Lag, as it stands in a query's progress (`trimtab.spark.stream.lag`)."""

from __future__ import annotations

from trimtab.spark.stream.lag import Lag


def test_what_is_not_known_is_left_out() -> None:
    nothing = Lag(7, None, False, None, 3, None, 0, "", 0)
    assert nothing.to_json() == {
        "batchRecords": 3,
        "lagRecords": 7,
        "lagBytesIsEstimate": False,
        "driverBytes": 0,
    }
