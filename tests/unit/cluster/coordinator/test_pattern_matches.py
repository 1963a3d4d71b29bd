"""Which topics regular expressions match (`trimtab.cluster.coordinator.pattern_matches`)."""

from __future__ import annotations

import logging
import sys

import pytest

from tests.steps import count_steps
from tests.unit.cluster.coordinator.scene import FixedTopics
from trimtab.cluster.coordinator.pattern_matches import PatternMatches
from trimtab.cluster.coordinator.topic_pattern import PatternRefused, report_missing

pytestmark = pytest.mark.kip(848)


@pytest.fixture
def topics() -> FixedTopics:
    topics = FixedTopics()
    for number in range(1000):
        topics.create(f"t{number}", 1)
    return topics


def test_what_was_matched_is_known_until_topics_change(topics: FixedTopics) -> None:
    matches = PatternMatches(topics)
    assert count_steps(matches.prepare("t.*"))[0] > 3
    assert count_steps(matches.prepare("t.*"))[0] == 0
    topics.create("t1000", 1)
    assert len(matches.find("t.*")) == 1001
    assert count_steps(matches.prepare("t.*"))[0] == 0


def test_topics_that_change_between_the_steps_are_matched_by_who_asks(topics: FixedTopics) -> None:
    matches = PatternMatches(topics)
    steps = matches.prepare("t.*")
    next(steps)
    topics.delete("t1")
    assert len(matches.find("t.*")) == 999
    assert list(steps)
    assert len(matches.find("t.*")) == 999


def test_a_refusal_is_known_too(topics: FixedTopics) -> None:
    matches = PatternMatches(topics)
    for _ in range(2):
        with pytest.raises(PatternRefused, match=r"missing \)"):
            matches.find("(")


def test_only_so_many_expressions_are_kept(topics: FixedTopics) -> None:
    matches = PatternMatches(topics)
    for number in range(1100):
        matches.find(f"u{number}")
    assert len(matches._found) == 1000
    assert matches.find("u0") == ()


def test_without_the_extra_members_and_the_log_are_told_what_to_install(
    topics: FixedTopics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    report_missing.cache_clear()
    matches = PatternMatches(topics)
    with caplog.at_level(logging.WARNING):
        for pattern in ("t.*", "u.*"):
            with pytest.raises(PatternRefused, match=r"pip install 'trimtab\[regex\]'"):
                matches.find(pattern)
    (record,) = caplog.records
    assert "pip install 'trimtab[regex]'" in record.message
