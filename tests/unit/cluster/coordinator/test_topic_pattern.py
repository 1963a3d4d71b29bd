"""Regular expressions of topics: RE2's syntax, whole names, linear time."""

from __future__ import annotations

import sys

import pytest

from tests.steps import count_steps, finish
from trimtab.cluster.coordinator.topic_pattern import (
    LibraryMissing,
    PatternRefused,
    TopicPattern,
)

pytestmark = pytest.mark.kip(848)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", "orders", "order orders2 xorders"),
        ("a|bc|", "a bc", "b abc"),
        ("a.c", "abc a-c", "ac abbc"),
        ("a*", "a aaa", "b"),
        ("(ab)+", "ab abab", "a aba"),
        ("ab?c", "ac abc", "abbc"),
        ("a{2}", "aa", "a aaa"),
        ("a{2,}", "aa aaaa", "a"),
        ("a{1,2}?b", "ab aab", "b aaab"),
        ("x{,2}", "x{,2}", "xx"),
        ("[a-c_]+", "abc_ a", "d"),
        ("[^a-c]", "d -", "a dd"),
        ("[]a-]+", "] a-", "b"),
        (r"[\d\-.]+", "1-2.3", "a"),
        ("[[:alpha:]]+[[:^alpha:]]", "ab1", "abc"),
        (r"a\-1\.2\_3", "a-1.2_3", "a-1.2"),
        (r"\w+\.\d+", "top_ic.12", "top-ic.12 topic12"),
        (r"\Wx\D\S", "-xaa", "axaa -x1a"),
        ("(?:a|b)(?P<name>c)(?<other>d)", "acd bcd", "cd"),
        ("(?i)Orders", "orders ORDERS", "order"),
        ("a(?i:b)c", "abc aBc", "abC"),
        ("(?i)a(?-i)b", "Ab ab", "aB"),
        ("[x-z](?i)[X]", "xx yX", "Xx"),
        ("^orders$", "orders", "orders2"),
        (r"\Aa\z", "a", "aa"),
        (r"a\b-\bb", "a-b", "ab"),
        (r"a\Bb.*", "ab", "a-b"),
        (r"\Qa.b*\E+", "a.b* a.b**", "acb"),
        (r"\x41\x{42}\103\060", "ABC0", "abc0"),
        (".*-(dlq|retry)", "a-dlq -retry", "a-other"),
        ("", "", "a"),
        ("é", "", "e"),
        (r"\pL+\p{Nd}", "ab1", "a1b 11"),
    ],
)
def test_whole_names_match(pattern: str, matching: str, others: str) -> None:
    compiled = TopicPattern(pattern)
    for name in matching.split() or [""] * (not pattern):
        assert compiled.matches(name), name
    for name in others.split():
        assert not compiled.matches(name), name


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(",
            ")",
            "[",
            "[a",
            "a**",
            "a+*",
            "*",
            "a{2}{3}",
            "a{3,2}",
            "a{1001}",
            "(?P<n",
            "(?P<>a)",
        ),
        *(
            r"(a)\1",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?>a)",
            "a++",
            r"\C",
            r"\Z",
            "\\",
            "[z-a]",
        ),
        *(
            "[[:none:]]",
            r"\xzz",
            r"\x{110000}",
            "a" * 10_001,
            "((a{100}){100}){100}",
            "(" * 1001 + ")" * 1001,
            "x?" * 5000,
            "x{0,1000}" * 60,
            r"\pL" * 30,
        ),
    ],
)
def test_what_re2_does_not_have_or_nobody_needs_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        TopicPattern(pattern)


def test_an_expression_that_python_would_take_for_ever_for() -> None:
    assert not TopicPattern("(a*)*(a*)*(a|aa)*b").matches("a" * 249)
    assert TopicPattern("(.*a){20}").matches("ba" * 100)


def test_an_expression_that_takes_long_for_all_topics_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trimtab.cluster.coordinator.topic_pattern._MOST_WORK", 10_000_000)
    names = [f"{number * 2_654_435_761**2 % 2**64:064b}" for number in range(1000)]
    assert len(finish(TopicPattern("[01]+").filter(names))) == 1000
    with pytest.raises(PatternRefused, match="too long"):
        finish(TopicPattern("(.*1.{9}){9}").filter(names))


def test_one_name_that_takes_long_is_refused() -> None:
    pattern = TopicPattern("((|a)*(|a)*){50}")
    assert pattern.matches("a" * 249)
    with pytest.raises(PatternRefused, match="for a name of 32000 characters"):
        pattern.matches("a" * 32_000)


def test_many_names_are_an_expression_too() -> None:
    names = [f"some-topic-{number}" for number in range(500)]
    assert finish(TopicPattern("|".join(names)).filter([*names, "other"])) == sorted(names)


def test_names_are_filtered_and_sorted() -> None:
    assert finish(TopicPattern("t.*").filter(["t2", "u", "t1"])) == ["t1", "t2"]


def test_many_names_are_filtered_in_steps() -> None:
    names = [f"t{number}" for number in range(10_000)]
    steps, found = count_steps(TopicPattern("t.*").filter(names))
    assert len(found) == 10_000
    assert steps > 40
    slow, _ = count_steps(TopicPattern("(x?y?){900}").filter(["t" * 249] * 10))
    assert slow == 10, "each name takes milliseconds"


def test_without_the_extra_every_expression_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(LibraryMissing, match=r"pip install 'trimtab\[regex\]'"):
        TopicPattern("t.*")
