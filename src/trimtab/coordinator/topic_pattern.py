"""Regular expressions of topics, in RE2's syntax: a name matches as a whole, in linear time.

    pattern ─▶ syntax ─▶ program of character sets, splits and assertions ─▶ its states, as needed

Python's `re` would take exponential time for some expressions, which members send. Names of topics
are ASCII, so a character set is a number with a bit for each. Classes of Unicode (`\\pL`) and `\\C`
are refused; so are back references and look-around, which RE2 does not have either.

Source: KIP-848 (`SubscribedTopicRegex`), RE2's syntax; R. Cox, "Regular Expression Matching Can Be
Simple And Fast".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

_ALL: Final = (1 << 128) - 1
_NEWLINE: Final = 1 << ord("\n")
_MOST_REPEATS: Final = 1000
"""RE2's largest number of repetitions."""
_LONGEST: Final = 10_000
"""Characters of an expression."""
_MOST_STEPS: Final = 10_000
"""Instructions of a program."""
_MOST_WORK: Final = 200_000
"""Instructions that `filter` visits; tens of milliseconds. Most expressions need a few for each
character that is new to them."""
_MOST_STATES: Final = 10_000
"""Transitions that are kept; more are computed again."""
_DEEPEST: Final = 100
"""Groups within groups."""


class PatternRefused(Exception):
    """The expression is not valid, or not supported."""


def _bits(characters: str) -> int:
    return sum(1 << ord(each) for each in set(characters))


def _range(first: str, last: str) -> int:
    return _bits("".join(chr(each) for each in range(ord(first), ord(last) + 1)))


_DIGITS = _range("0", "9")
_LOWER, _UPPER = _range("a", "z"), _range("A", "Z")
_WORD = _DIGITS | _LOWER | _UPPER | _bits("_")
_SPACE = _bits("\t\n\f\r ")
_PUNCTUATION = sum(
    1 << each for each in range(33, 127) if not (_DIGITS | _LOWER | _UPPER) >> each & 1
)
_PERL = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_POSIX = {
    "alnum": _DIGITS | _LOWER | _UPPER,
    "alpha": _LOWER | _UPPER,
    "ascii": _ALL,
    "blank": _bits("\t "),
    "cntrl": _range("\0", "\x1f") | _bits("\x7f"),
    "digit": _DIGITS,
    "graph": _range("!", "~"),
    "lower": _LOWER,
    "print": _range(" ", "~"),
    "punct": _PUNCTUATION,
    "space": _SPACE | _bits("\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGITS | _range("a", "f") | _range("A", "F"),
}
_CONTROL = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}

_BEGIN, _END, _LINE_BEGIN, _LINE_END, _AT_WORD, _NOT_AT_WORD = range(6)
"""Assertions about a place in the name."""


class _Set(NamedTuple):
    bits: int


class _Assert(NamedTuple):
    kind: int


class _Sequence(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    parts: tuple[_Node, ...]


class _Repeat(NamedTuple):
    part: _Node
    least: int
    most: int | None


_Node = _Set | _Assert | _Sequence | _Choice | _Repeat


class _Flags(NamedTuple):
    ignores_case: bool = False
    has_lines: bool = False
    dot_is_all: bool = False


class _Reader:
    """Reads an expression, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._flags = _Flags()

    def read(self) -> _Node:
        node = self._read_choice()
        if self._at < len(self._text):
            raise PatternRefused("there is a ) without a (")
        return node

    def _read_choice(self) -> _Node:
        parts = [self._read_sequence()]
        while self._take("|"):
            parts.append(self._read_sequence())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _read_sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("\\Q"):
                end = self._text.find("\\E", self._at)
                literal = self._text[self._at :] if end < 0 else self._text[self._at : end]
                self._at = len(self._text) if end < 0 else end + 2
                parts += [self._literal(each) for each in literal]
                if parts:
                    parts.append(self._read_repeats(parts.pop()))
                continue
            atom = self._read_atom()
            if atom is not None:
                parts.append(self._read_repeats(atom))
        return _Sequence(tuple(parts))

    def _read_repeats(self, atom: _Node) -> _Node:
        limits = self._read_limits()
        if limits is None:
            return atom
        self._take("?")  # as few as possible: the whole name matches, or not, all the same
        at = self._at
        if self._read_limits() is not None:
            self._at = at
            raise PatternRefused(f"the repetition at {at} follows another")
        return _Repeat(atom, *limits)

    def _read_limits(self) -> tuple[int, int | None] | None:
        for sign, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return limits
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not least.isdecimal() or (most and not most.isdecimal()):
            return None  # not a repetition: a { stands for itself
        highest = int(most) if most else None if comma else int(least)
        if int(least) > _MOST_REPEATS or (highest or 0) > _MOST_REPEATS:
            raise PatternRefused(f"more than {_MOST_REPEATS} repetitions")
        if highest is not None and highest < int(least):
            raise PatternRefused(f"{int(least)} to {highest} repetitions")
        self._at = end + 1
        return int(least), highest

    def _read_atom(self) -> _Node | None:
        """One element; None for flags, which match nothing."""
        sign = self._next()
        if sign == "(":
            return self._read_group()
        if sign == "[":
            return _Set(self._fold(self._read_class()))
        if sign == ".":
            return _Set(_ALL if self._flags.dot_is_all else _ALL & ~_NEWLINE)
        if sign == "^":
            return _Assert(_LINE_BEGIN if self._flags.has_lines else _BEGIN)
        if sign == "$":
            return _Assert(_LINE_END if self._flags.has_lines else _END)
        if sign in "*+?":
            raise PatternRefused(f"there is nothing to repeat before {sign}")
        if sign == "\\":
            return self._read_escape()
        return self._literal(sign)

    def _read_group(self) -> _Node | None:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name = self._until(">")
                if not name.isidentifier() and not name.isalnum():
                    raise PatternRefused(f"{name!r} is no name of a group")
            elif self._read_flags() == ")":
                return None
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PatternRefused(f"more than {_DEEPEST} groups within each other")
        node = self._read_choice()
        self._depth -= 1
        self._flags = outer
        if not self._take(")"):
            raise PatternRefused("a ) is missing")
        return node

    def _read_flags(self) -> str:
        """Change the flags; returns the sign after them, ) or :."""
        is_on = True
        names = {"i": "ignores_case", "m": "has_lines", "s": "dot_is_all"}
        while True:
            sign = self._next()
            if sign in ":)":
                return sign
            if sign == "-" and is_on:
                is_on = False
            elif sign in names:
                self._flags = self._flags._replace(**{names[sign]: is_on})
            elif sign != "U":
                raise PatternRefused(f"(?{sign} is not supported")

    def _read_class(self) -> int:
        is_negated = self._take("^")
        bits, is_first = 0, True
        while is_first or not self._text.startswith("]", self._at):
            is_first = False
            if self._take("[:"):
                bits |= self._read_posix()
                continue
            first = self._next()
            if first == "\\":
                group = self._read_perl()
                if group is not None:
                    bits |= group
                    continue
                first = self._read_character()
            last = first
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._next()
                if last == "\\":
                    last = self._read_character()
                if last < first:
                    raise PatternRefused(f"the range {first}-{last} is empty")
            for each in range(ord(first), min(ord(last), 127) + 1):
                bits |= 1 << each
        self._at += 1
        bits = self._fold(bits)
        return _ALL & ~bits if is_negated else bits

    def _read_posix(self) -> int:
        name = self._until(":]")
        is_negated = name.startswith("^")
        bits = _POSIX.get(name.removeprefix("^"))
        if bits is None:
            raise PatternRefused(f"there is no class [:{name}:]")
        return _ALL & ~bits if is_negated else bits

    def _read_escape(self) -> _Node:
        for sign, kind in (("A", _BEGIN), ("z", _END), ("b", _AT_WORD), ("B", _NOT_AT_WORD)):
            if self._take(sign):
                return _Assert(kind)
        group = self._read_perl()
        return self._literal(self._read_character()) if group is None else _Set(group)

    def _read_perl(self) -> int | None:
        """The set of an escape such as \\d; None if it is not one."""
        sign = self._text[self._at : self._at + 1]
        bits = _PERL.get(sign.lower())
        if bits is None:
            return None
        self._at += 1
        return bits if sign.islower() else _ALL & ~bits

    def _read_character(self) -> str:
        """The character that an escape stands for."""
        sign = self._next()
        if sign in _CONTROL:
            return _CONTROL[sign]
        if sign == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise PatternRefused(f"\\x{digits} is no character") from None
        octal = sign
        while (
            sign in "01234567"
            and len(octal) < 3
            and self._text[self._at : self._at + 1] in tuple("01234567")
        ):
            octal += self._next()
        if set(octal) <= set("01234567") and (octal[0] == "0" or len(octal) == 3):
            return chr(int(octal, 8))
        if sign.isalnum() or len(octal) > 1:
            raise PatternRefused(f"\\{sign} is not supported")
        return sign

    def _literal(self, character: str) -> _Node:
        return _Set(self._fold(1 << ord(character)) if character.isascii() else 0)

    def _fold(self, bits: int) -> int:
        if self._flags.ignores_case:
            apart = ord("a") - ord("A")
            bits |= (bits & _UPPER) << apart | (bits & _LOWER) >> apart
        return bits

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternRefused("it ends in the middle")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        if found:
            self._at += len(sign)
        return found

    def _until(self, sign: str) -> str:
        end = self._text.find(sign, self._at)
        if end < 0:
            raise PatternRefused(f"a {sign} is missing")
        found = self._text[self._at : end]
        self._at = end + len(sign)
        return found


class _Step(NamedTuple):
    """One instruction.

    Attributes:
        bits: the characters that lead to `after`; -1: none is read.
        kind: the assertion that must hold; -1: none.
        after: the instructions that follow.
    """

    bits: int
    kind: int
    after: tuple[int, ...]


_MATCH: Final = 0
"""The instruction at which the expression has matched."""
_NONE: Final = -1


_State: TypeAlias = tuple[frozenset[int], str]
"""The instructions that may come next, and the last character: only whether it was one of a word,
or ended a line, matters."""


class TopicPattern:
    """A compiled expression.

    Raises:
        PatternRefused: the expression is not valid, or not supported.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise PatternRefused(f"it is longer than {_LONGEST} characters")
        self._work = 0
        self._steps: list[_Step] = [_Step(_NONE, _NONE, ())]
        begin = self._compile(_Reader(text).read(), _MATCH)
        self._begin: _State = (frozenset((begin,)), "")
        self._moves: dict[tuple[_State, str], _State] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state, moves = self._begin, self._moves
        for character in name:
            after = moves.get((state, character))
            state = self._move(state, character) if after is None else after
            if not state[0]:
                return False
        return _MATCH in self._close(state, "")

    def filter(self, names: Iterable[str]) -> list[str]:
        """The names that match, sorted.

        Raises:
            PatternRefused: that takes too long.
        """
        self._work = 0
        return sorted(filter(self.matches, names))

    def _move(self, state: _State, character: str) -> _State:
        bit = 1 << ord(character) if character.isascii() else 0
        reached = frozenset(
            after
            for place in self._close(state, character)
            if self._steps[place].bits != _NONE and self._steps[place].bits & bit
            for after in self._steps[place].after
        )
        if len(self._moves) >= _MOST_STATES:
            self._moves.clear()
        moved = self._moves[state, character] = (reached, _look_of(character))
        return moved

    def _close(self, state: _State, character: str) -> set[int]:
        """The instructions that can be reached before the next character; "" at the end."""
        places, before = state
        reached: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in reached:
                reached.add(place)
                step = self._steps[place]
                if step.bits == _NONE and (
                    step.kind == _NONE or _holds(step.kind, before, character)
                ):
                    left += step.after
        self._work += len(reached)
        if self._work > _MOST_WORK:
            raise PatternRefused("it takes too long for so many topics: write a simpler one")
        return reached

    def _compile(self, node: _Node, after: int) -> int:
        """Add the instructions of a part that `after` follows; returns its first."""
        if isinstance(node, _Set):
            return self._add(_Step(node.bits, _NONE, (after,)))
        if isinstance(node, _Assert):
            return self._add(_Step(_NONE, node.kind, (after,)))
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                after = self._compile(part, after)
            return after
        if isinstance(node, _Choice):
            ways = tuple(self._compile(part, after) for part in node.parts)
            return self._add(_Step(_NONE, _NONE, ways))
        if node.most is None:
            loop = self._add(_Step(_NONE, _NONE, ()))
            self._steps[loop] = _Step(_NONE, _NONE, (self._compile(node.part, loop), after))
            begin = loop
        else:
            begin = after
            for _ in range(node.most - node.least):
                begin = self._add(_Step(_NONE, _NONE, (self._compile(node.part, begin), after)))
        for _ in range(node.least):
            begin = self._compile(node.part, begin)
        return begin

    def _add(self, step: _Step) -> int:
        if len(self._steps) > _MOST_STEPS:
            raise PatternRefused(f"it is too large: more than {_MOST_STEPS} steps")
        self._steps.append(step)
        return len(self._steps) - 1


def _look_of(character: str) -> str:
    """One of the characters that are alike to assertions."""
    if character == "\n":
        return character
    return "a" if character.isascii() and _WORD >> ord(character) & 1 else "-"


def _holds(kind: int, before: str, character: str) -> bool:
    if kind == _BEGIN:
        return not before
    if kind == _END:
        return not character
    if kind == _LINE_BEGIN:
        return before in ("", "\n")
    if kind == _LINE_END:
        return character in ("", "\n")
    is_edge = (before == "a") != (bool(character) and _look_of(character) == "a")
    return is_edge == (kind == _AT_WORD)
