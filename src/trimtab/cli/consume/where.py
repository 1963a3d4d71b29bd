"""What `--where` and `--format` say of a record: expressions, and the fields in them.

    value.country == 'CH' and partition in (1, 2)
    key ~ '^ab' or headers['trace-id'] is None
    time >= '2026-01-31T08:00' and not value.items[0].price < 5

An expression has Python's form, and Python's parser reads it; but nothing of it is evaluated by
Python. What is not one of the forms below is refused, with its place.

- Fields: `topic`, `partition`, `offset`, `timestamp` (ms since 1970), `time` (the same in UTC, such
  as 2026-01-31T08:00:00.000Z), `key`, `value`, `headers`.
- `key` and `value` are text; `value.a`, `value['a b']` and `value[0]` are of the JSON in them, or
  of what a Schema Registry's schema makes of them. `headers.name` is the last one of that name.
- `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, `is None`, `and`, `or`, `not`, parentheses; `~`
  says whether a regular expression is found in a text.
- Numbers, texts, `True`, `False`, `None` (also `true`, `false`, `null`), lists.

What is missing, or is not JSON, is None. An order of things of different kinds is false.

A regular expression is RE2's, in linear time, if google-re2 is installed; otherwise Python's.
"""

from __future__ import annotations

import ast
import io
import json
import keyword
import operator
import re
import tokenize
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, TypeAlias

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record

_DEEPEST: Final = 100
"""Forms within each other; Python's own stack has room for about ten times as many."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Seen:
    """A record whose parts are decoded when they are first asked for."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def key(self) -> Any:
        return _parse(self.record.key)

    @cached_property
    def value(self) -> Any:
        return _parse(self.record.value)

    @cached_property
    def headers(self) -> dict[str, str | None]:
        return {name: show(content) for name, content in self.record.headers}


Read: TypeAlias = Callable[[Seen], Any]


def _parse(data: Any) -> Any:
    """The object in a key or value; None if it is not JSON."""
    if not isinstance(data, bytes):
        return data
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def show(found: Any) -> str | None:
    """A field's content as text; None stays None. What a deserializer has made is JSON."""
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, dict | list | int | float):
        return json.dumps(found, ensure_ascii=False, default=plain)
    return plain(found)


def plain(found: Any) -> str:
    """For JSON: what it has no form for, such as bytes, decimals and times in Avro."""
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return str(found.isoformat() if hasattr(found, "isoformat") else found)


def show_time(timestamp: int) -> str | None:
    """Milliseconds since 1970 in UTC, as ISO 8601 has it; None if there is no such time."""
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return None
    return None if timestamp < 0 else f"{at:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03}Z"


_FIELDS: Final[Mapping[str, Read]] = {
    "topic": lambda seen: seen.record.topic,
    "partition": lambda seen: seen.record.partition,
    "offset": lambda seen: seen.record.offset,
    "timestamp": lambda seen: seen.record.timestamp,
    "time": lambda seen: show_time(seen.record.timestamp),
    "key": lambda seen: show(seen.record.key),
    "value": lambda seen: show(seen.record.value),
    "headers": lambda seen: seen.headers,
}
_PARTS: Final[Mapping[str, Read]] = {
    "key": lambda seen: seen.key,
    "value": lambda seen: seen.value,
    "headers": lambda seen: seen.headers,
}
"""The fields that have fields of their own."""
_NUMBER, _TEXT = "a number", "a text"
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_OPERATORS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: _is_in(one, many),
    ast.NotIn: lambda one, many: not _is_in(one, many),
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}


class Expression:
    """A text of `--where` or of a field in `--format`, to read from records.

    Args:
        text: the expression.
        option: where it comes from, for errors.
        is_field: whether it must be a field, without operators.

    Raises:
        UsageError: it has another form than above; says where.
    """

    def __init__(self, text: str, option: str, is_field: bool = False) -> None:
        self._text = " ".join(text.splitlines()).strip()
        self._option = option
        self._depth = 0
        self._keywords: dict[int, str] = {}
        tree = self._parse()
        self.read: Read = self._compile_field(tree) if is_field else self._compile(tree)

    def _parse(self) -> ast.expr:
        """Python has no `~` between two operands: `@` stands for it, which is none of ours. A field
        may have the name of one of Python's keywords, such as `value.from`."""
        text, before = list(self._text), ""
        try:
            for token in tokenize.generate_tokens(io.StringIO(self._text).readline):
                word, at, end = token.string, token.start[1], token.end[1]
                if token.type == tokenize.OP and word.startswith("@"):
                    raise self._wrong(at, "there is no operator @")
                if token.type == tokenize.OP and word == "~":
                    text[at] = "@"
                elif before == "." and keyword.iskeyword(word):
                    text[at:end] = "_" * len(word)
                    self._keywords[len(self._text[:end].encode())] = word
                before = word
            return ast.parse("".join(text), mode="eval").body
        except tokenize.TokenError as error:
            raise self._wrong(len(self._text), str(error.args[0])) from None
        except SyntaxError as error:
            at = (error.offset or 1) - 1
            why = "write == to compare" if self._text[at : at + 1] == "=" else error.msg
            raise self._wrong(at, why) from None
        except UsageError:
            raise
        except (ValueError, RecursionError, MemoryError) as error:
            raise self._wrong(0, str(error) or "it is nested too deeply") from None

    def _wrong(self, at: int, why: str) -> UsageError:
        near = f"at {self._text[at : at + 20]!r}" if at < len(self._text) else "at the end"
        return UsageError(f"{self._option}, column {at + 1}, {near}: {why}")

    def _wrong_at(self, node: ast.expr, why: str) -> UsageError:
        return self._wrong(len(self._text.encode()[: node.col_offset].decode()), why)

    def _compile(self, node: ast.expr) -> Read:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong_at(node, f"it is nested deeper than {_DEEPEST} levels")
        try:
            return self._compile_form(node)
        finally:
            self._depth -= 1

    def _compile_form(self, node: ast.expr) -> Read:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                parts = [self._compile(each) for each in values]
                return lambda seen: all(part(seen) for part in parts)
            case ast.BoolOp(values=values):
                parts = [self._compile(each) for each in values]
                return lambda seen: any(part(seen) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self._compile(operand)
                return lambda seen: not negated(seen)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return lambda seen: -number
            case ast.Compare():
                return self._compile_comparison(node)
            case ast.BinOp(op=ast.MatMult(), left=left, right=ast.Constant(value=str(pattern))):
                return self._compile_match(node, self._compile(left), pattern)
            case ast.BinOp(op=ast.MatMult(), right=right):
                raise self._wrong_at(right, "write a regular expression in quotes after ~")
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                parts = [self._compile(each) for each in elements]
                return lambda seen: [part(seen) for part in parts]
            case ast.Constant(value=str() | int() | float() | None as constant):
                return lambda seen: constant
            case ast.Name(id=name) if name in _CONSTANTS:
                named = _CONSTANTS[name]
                return lambda seen: named
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._compile_field(node)
        raise self._wrong_at(
            node, "write fields, numbers, texts, comparisons, ~, and, or, not; nothing else"
        )

    def _compile_field(self, node: ast.expr) -> Read:
        steps: list[str | int] = []
        inner = node
        while True:
            match inner:
                case ast.Attribute(value=inner, attr=name, end_col_offset=int() as end):
                    steps.append(self._keywords.get(end, name))
                case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as step)):
                    steps.append(step)
                case ast.Name(id=name):
                    break
                case _:
                    raise self._wrong_at(inner, "this is no field: write such as value.a['b c'][0]")
        if name not in _FIELDS:
            close = get_close_matches(name, _FIELDS, 1)
            hint = f"did you mean {close[0]}?" if close else f"value.{name} is one of the value"
            known = ", ".join(_FIELDS)
            raise self._wrong_at(inner, f"there is no field {name} ({known}): {hint}")
        if not steps:
            return _FIELDS[name]
        if name not in _PARTS:
            raise self._wrong_at(inner, f"{name} has no fields")
        base, steps = _PARTS[name], steps[::-1]
        return lambda seen: _walk(base(seen), steps)

    def _compile_comparison(self, node: ast.Compare) -> Read:
        steps = []
        left = node.left
        for which, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(which, ast.Is | ast.IsNot) and not _is_none(right):
                raise self._wrong_at(right, "only None comes after is; write == for other things")
            steps.append((_OPERATORS[type(which)], self._compile_operand(which, left, right)))
            left = right
        first = self._compile(node.left)

        def compare(seen: Seen) -> bool:
            one = first(seen)
            for is_so, read in steps:
                other = read(seen)
                try:
                    if not is_so(one, other):
                        return False
                except TypeError:  # things of different kinds have no order
                    return False
                one = other
            return True

        return compare

    def _compile_operand(self, which: ast.cmpop, left: ast.expr, right: ast.expr) -> Read:
        """The right side of a comparison, checked to be of the left one's kind."""
        is_in = isinstance(which, ast.In | ast.NotIn)
        others = [right] if not is_in or _kind(right) == _NUMBER else []  # `(1)` is a number
        if isinstance(right, ast.Tuple | ast.List):
            others = right.elts
        kind = _kind(left)
        for each in others:
            if None not in (kind, _kind(each)) and kind != _kind(each):
                raise self._wrong_at(each, f"this is {_kind(each)}, and compared with {kind}")
        if not is_in or not others:
            return self._compile(right)
        parts = [self._compile(each) for each in others]
        constants = [each.value for each in others if isinstance(each, ast.Constant)]
        if len(constants) == len(parts):
            known = frozenset(constants)
            return lambda seen: known
        return lambda seen: [part(seen) for part in parts]

    def _compile_match(self, node: ast.expr, read: Read, pattern: str) -> Read:
        find = self._compile_pattern(node, pattern)

        def match(seen: Seen) -> bool:
            text = show(read(seen))
            return text is not None and find(text) is not None

        return match

    def _compile_pattern(self, node: ast.expr, pattern: str) -> Callable[[str], Any]:
        try:
            import re2
        except ImportError:
            re2 = None
        failure = re.error if re2 is None else re2.error
        try:
            if re2 is None:
                return re.compile(pattern).search
            options = re2.Options()
            options.never_capture, options.log_errors = True, False
            search = re2.compile(pattern, options).search
        except failure as error:
            reason = error.args[0]
            shown = reason.decode() if isinstance(reason, bytes) else reason
            raise self._wrong_at(node, f"{pattern!r} is no regular expression: {shown}") from None
        return lambda text: search(text.encode("utf-8", "replace"))  # JSON may have surrogates


def _is_in(one: Any, many: Any) -> bool:
    try:
        return one in many
    except TypeError:
        return False


def _walk(found: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    return plain(found) if hasattr(found, "isoformat") else found


def _is_none(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id == "null"
    )


def _kind(node: ast.expr) -> str | None:
    """Whether it is certainly a number or a text; None if that is not known."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float()) | ast.UnaryOp(op=ast.USub()):
            return _NUMBER
        case ast.Name(id="partition" | "offset" | "timestamp"):
            return _NUMBER
        case ast.Constant(value=str()) | ast.Name(id="topic" | "time" | "key" | "value"):
            return _TEXT
    return None
