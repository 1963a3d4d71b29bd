"""The file that says who produces and consumes where."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.load.clients import read_clients
from trimtab.kafka.errors import UsageError

HEAD = "topic,kind,rack,share,isNear\n"


def test_a_row_is_a_client(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(HEAD + "flights,produce,a,3,true\n flights, consume, b, 0.25, false\n")
    assert read_clients(str(path)) == [
        ("flights", "produce", "a", 3.0, True),
        ("flights", "consume", "b", 0.25, False),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("topic,kind\n", "the first line is 'topic,kind': write topic,kind,rack,share,isNear"),
        ("", "the first line is ''"),
        (HEAD + "t,produce,a,1\n", "line 2: a row has 5 cells"),
        (HEAD + "t,produce,a,1,true,7\n", "line 2: a row has 5 cells"),
        (HEAD + "t,read,a,1,true\n", "line 2: kind 'read': write produce or consume"),
        (HEAD + "t,produce,a,0,true\n", "line 2: share '0': write a number above 0"),
        (HEAD + "t,produce,a,nan,true\n", "share 'nan'"),
        (HEAD + "t,produce,a,x,true\n", "share 'x'"),
        (HEAD + "t,produce,a,1,yes\n", "isNear 'yes': write true or false"),
        (b"\xff\xfe", "is no CSV file in UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, why: str) -> None:
    path = tmp_path / "clients.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=why):
        read_clients(str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_clients(str(tmp_path / "none.csv"))
