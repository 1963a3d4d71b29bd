"""Regular expressions of topics, in RE2's syntax: a name matches as a whole, in linear time.

Python's `re` would take exponential time for some expressions, which members send. RE2's library
never does, but a call to it cannot be divided into steps. So each call has limits before it: on the
expression's operators, because some take long to compile, and on its instructions times the
characters of the names. docs/adr/0021-re2-from-its-own-library.md has the figures.

Source: KIP-848 (`SubscribedTopicRegex`); Kafka uses RE2/J, which has the same syntax.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from trimtab.cluster.server.turns import Pace, Steps

_log = logging.getLogger(__name__)

_LONGEST: Final = 10_000
"""Characters of an expression."""
_MOST_OPERATORS: Final = 1000
_OPERATOR: Final = re.compile(r"\\[pP]|\\.|[{?*+\[(]|[^\0-\x7f]", re.DOTALL)
_COUNTS_AS: Final = {"{": 20, r"\p": 50, r"\P": 50}
"""As many operators as these take time to compile."""
_MOST_MEMORY: Final = 160 << 10
"""Bytes of an expression: about 12,000 instructions."""
_MOST_WORK: Final = 500_000_000
"""Instructions times characters of names. The worst expressions take 3 to 13 ns for each."""
_MOST_AT_ONCE: Final = 12_000 * 249
"""The same for one name, since RE2 cannot pause: the longest name of a topic with the largest
expression. Transactional ids may be longer."""
_WORK_PER_COST: Final = 500
"""So much work takes, at worst, as long as a unit of `Pace`."""


class PatternRefused(Exception):
    """The expression is not valid, or not supported."""


class LibraryMissing(PatternRefused):
    """RE2 is not installed."""

    def __init__(self) -> None:
        super().__init__("this needs the package google-re2: pip install 'trimtab[regex]'")


class TopicPattern:
    """A compiled expression.

    Args:
        text: the expression.

    Raises:
        PatternRefused: it is not valid, or would cost too much.
        LibraryMissing: RE2 is not installed.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise PatternRefused(f"it is longer than {_LONGEST} characters")
        operators = _OPERATOR.findall(text)
        if sum(_COUNTS_AS.get(operator, 1) for operator in operators) > _MOST_OPERATORS:
            raise PatternRefused(
                f"it has more than {_MOST_OPERATORS} operators, of which a {{ counts as 20,"
                r" and a \p as 50"
            )
        if r"\C" in operators:
            raise PatternRefused(r"\C is not supported")  # as by RE2/J
        re2 = _import_re2()
        options = re2.Options()
        options.max_mem = _MOST_MEMORY
        options.never_capture = True
        options.log_errors = False
        try:
            # A shell's argument may have surrogates.
            self._compiled = re2.compile(text.encode(errors="surrogatepass"), options)
        except re2.error as error:
            reason = error.args[0]
            raise PatternRefused(reason.decode() if isinstance(reason, bytes) else reason) from None
        self._size: int = self._compiled.programsize
        self._work = 0

    def cost(self, name: str) -> int:
        """What `matches` costs at worst, in the unit of `Pace`."""
        return 1 + self._size * len(name) // _WORK_PER_COST

    def matches(self, name: str) -> bool:
        """Whether the whole name matches.

        Raises:
            PatternRefused: it takes too long, alone or together with the names before.
        """
        work = self._size * len(name)
        if work > _MOST_AT_ONCE:
            raise PatternRefused(
                f"it takes too long for a name of {len(name)} characters: write a simpler one"
            )
        self._work += work
        if self._work > _MOST_WORK:
            raise PatternRefused("it takes too long for so many topics: write a simpler one")
        return self._compiled.fullmatch(name.encode()) is not None

    def filter(self, names: Iterable[str]) -> Steps[list[str]]:
        """The names that match, sorted. The names must not change before the end.

        Raises:
            PatternRefused: that takes too long.
        """
        self._work = 0
        pace, found = Pace(), []
        for name in names:
            if pace.spend(self.cost(name)):
                yield
            if self.matches(name):
                found.append(name)
        return sorted(found)


def _import_re2() -> Any:
    try:
        import re2
    except ImportError:
        raise LibraryMissing from None
    return re2


@cache
def report_missing() -> None:
    """Write into the node's log, once, that clients' regular expressions are refused."""
    _log.warning("Regular expressions of clients are refused: %s", LibraryMissing())
