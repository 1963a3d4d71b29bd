from __future__ import annotations

import pytest

from trimtab.cluster.config.properties import parse_properties
from trimtab.kafka.errors import UsageError


def parse(text: str) -> dict[str, str]:
    return {name: each.value for name, each in parse_properties(text, "p").items()}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("node.id=1", "node.id", "1"),
        ("node.id: 1", "node.id", "1"),
        ("node.id 1", "node.id", "1"),
        (" \tnode.id \t=\t1", "node.id", "1"),
        ("listeners=PLAINTEXT://:9092", "listeners", "PLAINTEXT://:9092"),
        ("a=b=c:d", "a", "b=c:d"),
        ("a = # no comment", "a", "# no comment"),
        ("a=1 ", "a", "1 "),
        ("a=", "a", ""),
        ("a:", "a", ""),
        (r"a\ b\=\:=c", "a b=:", "c"),
        (r"a=\ b", "a", " b"),
        (r"a=tab\tnew\nback\\slash", "a", "tab\tnew\nback\\slash"),
        (r"a=\u20ac\u20AC", "a", "€€"),
        (r"a=\ud83d\ude00", "a", "😀"),
        (r"a=c:\\kafka\\logs", "a", r"c:\kafka\logs"),
        (r"a=\q", "a", "q"),
    ],
)
def test_a_line_is_read_as_java_reads_it(line: str, name: str, value: str) -> None:
    assert parse(line) == {name: value}


def test_comments_and_empty_lines_say_nothing() -> None:
    assert parse("# one\n! two \\\n\n  \t\n   # three\na=1\n") == {"a": "1"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_that_ends_in_a_backslash_continues_in_the_next(end: str) -> None:
    text = end.join(["a=1,\\", "   2,\\", "   # 3", "b=x\\\\", "c=y"])
    assert parse(text) == {"a": "1,2,# 3", "b": "x\\", "c": "y"}


def test_a_file_may_end_within_a_continued_line() -> None:
    assert parse("a=1\\") == {"a": "1"}
    assert parse("a=1\n\\") == {"a": "1"}


def test_a_property_knows_the_line_in_which_it_begins() -> None:
    found = parse_properties("# c\na=1,\\\n2\n\nb=2\n", "p")
    assert {name: each.line for name, each in found.items()} == {"a": 2, "b": 5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=1\nbroken", r"p, line 2: 'broken' is not name=value; write for instance broken=1"),
        ("=1", r"p, line 1: '=1' is not name=value"),
        ("a=1\n\na=2", r"p, line 3: a=2 is given in line 1 already, as '1'; keep one"),
        (r"a=\u12", r"p, line 1: '\\\\u12': \\u wants four hexadecimal digits"),
    ],
)
def test_a_slip_of_the_pen_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse(text)
