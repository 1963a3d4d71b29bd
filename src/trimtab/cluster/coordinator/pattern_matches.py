"""Which topics the regular expressions of groups match, kept as long as the topics stay.

To match one with 10,000 topics takes milliseconds, and seconds for the worst expressions that are
not refused. So a request has it done in steps before the group decides.
"""

from __future__ import annotations

from typing import Final

from trimtab.cluster.coordinator.topic_pattern import (
    LibraryMissing,
    PatternRefused,
    TopicPattern,
    report_missing,
)
from trimtab.cluster.coordinator.topics import Topics
from trimtab.cluster.server.turns import Steps

_MOST: Final = 1000
"""Expressions that are kept."""


class PatternMatches:
    """The topics that match each expression.

    Args:
        topics: the topics of the cluster.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version: object = None
        self._found: dict[str, tuple[str, ...] | str] = {}
        """The topics, or why the expression is refused."""

    def find(self, pattern: str) -> tuple[str, ...]:
        """The topics that match now, sorted; at once if `prepare` has been called.

        Raises:
            PatternRefused: the expression is not valid, not supported, or takes too long.
        """
        for _ in self.prepare(pattern):
            pass
        found = self._found[pattern]
        if isinstance(found, str):
            raise PatternRefused(found)
        return found

    def prepare(self, pattern: str) -> Steps[None]:
        """Have `find` know the answer, unless the topics change again."""
        version = self._topics.version
        if self._version != version:
            self._version = version
            self._found.clear()
        if pattern in self._found:
            return
        found: tuple[str, ...] | str
        try:
            compiled = TopicPattern(pattern)
            found = tuple((yield from compiled.filter(list(self._topics.names()))))
        except LibraryMissing as missing:
            report_missing()
            found = str(missing)
        except PatternRefused as refused:
            found = str(refused)
        if self._topics.version == version:
            if len(self._found) >= _MOST:
                del self._found[next(iter(self._found))]
            self._found[pattern] = found
