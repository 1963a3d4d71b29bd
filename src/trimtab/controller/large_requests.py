"""Requests about very many things, decided a part at a time.

A large request is cut into parts, each of which is decided and appended to the journal by itself,
and others have their turn between two of them. What concerns all of it is shared by the parts
(`Whole`): what it names twice, how many records it leads to, and what `validate_only` has granted.
It is answered once, when all of it is on disk and known to the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterator
from copy import copy
from typing import Any, NamedTuple

from trimtab.controller.decision import Whole
from trimtab.errors import ErrorCode
from trimtab.server.turns import Steps

AT_ONCE = 50
"""What is decided between two turns: some milliseconds."""
_COUNTED_AT_ONCE = 4000
_PARTITIONS_A_TOPIC = 20

Decide = Callable[[Any, Whole], Any]
"""Decides about a request. If `Whole.is_cut`, what it returns is the response, which is not to be
sent before `Reach`; else it is what awaits the response."""
Reach = Callable[[Any, Whole], Coroutine[Any, Any, Any]]
"""Awaits that what was decided may be told: the response, and the request that it answers."""


class Parts(NamedTuple):
    """Which arrays of a request and of its response belong together.

    Attributes:
        asked: of the request.
        answered: of the response.
        asked_inner: of an element that is asked about; none if it stands for one thing.
        answered_inner: of an element of the answer.
        name: what an element must not share with another of the request.
        answers_once: whether what is named twice is answered once, at its first place.
        partitions: that an element asks for; twenty of them are as much work as a topic.
    """

    asked: str
    answered: str
    asked_inner: str = ""
    answered_inner: str = ""
    name: Callable[[Any], Hashable] | None = None
    answers_once: bool = False
    partitions: Callable[[Any], int] = lambda element: 0

    def size(self, element: Any) -> int:
        """How many things it stands for."""
        inner = len(getattr(element, self.asked_inner, None) or ())
        return 1 + inner + self.partitions(element) // _PARTITIONS_A_TOPIC


def decide_in_parts(
    decide: Decide, reach: Reach, parts: Parts, request: Any
) -> Steps[Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any]:
    """What awaits the answer to a request, after it has been decided: at once if it is small."""
    elements = getattr(request, parts.asked)
    if not elements or (
        len(elements) <= AT_ONCE and sum(map(parts.size, elements)) - len(elements) <= AT_ONCE
    ):
        return decide(request, Whole())  # type: ignore[no-any-return]
    return _decide(decide, reach, parts, request, elements)


def _decide(
    decide: Decide, reach: Reach, parts: Parts, request: Any, elements: list[Any]
) -> Steps[Coroutine[Any, Any, Any]]:
    whole = Whole(is_cut=True)
    if parts.name is not None:
        for start in range(0, len(elements), _COUNTED_AT_ONCE):
            whole.times.update(map(parts.name, elements[start : start + _COUNTED_AT_ONCE]))
            yield
    response: Any = None
    for part in _cut(elements, parts, whole):
        if part:
            answer = decide(_with(request, parts.asked, part), whole)
            if response is None:
                response = answer
            else:
                _add(response, answer, parts)
        yield
    return reach(response, whole)


def _cut(elements: list[Any], parts: Parts, whole: Whole) -> Iterator[list[Any]]:
    """The elements, some at a time; none where very many were only named again."""
    part: list[Any] = []
    size = 0
    answered: set[Hashable] = set()
    for element in elements:
        if parts.answers_once and parts.name is not None:
            name = parts.name(element)
            if name in answered:
                size += 1
                if size >= _COUNTED_AT_ONCE:
                    yield part
                    part, size = [], 0
                continue
            if whole.times[name] > 1:
                answered.add(name)
        for piece in _cut_inner(element, parts.asked_inner):
            part.append(piece)
            size += parts.size(piece)
            if size >= AT_ONCE:
                yield part
                part, size = [], 0
    if part:
        yield part


def _cut_inner(element: Any, inner: str) -> Iterator[Any]:
    things: list[Any] = getattr(element, inner, None) or []
    if len(things) <= AT_ONCE:
        yield element
        return
    for start in range(0, len(things), AT_ONCE):
        yield _with(element, inner, things[start : start + AT_ONCE])


def _with(message: Any, name: str, things: list[Any]) -> Any:
    """The message with other things in one of its arrays."""
    changed = copy(message)
    setattr(changed, name, things)
    return changed


def _add(response: Any, answer: Any, parts: Parts) -> None:
    """Put the answer about a part behind what has been answered before."""
    if getattr(response, "error_code", answer) == ErrorCode.NONE:
        response.error_code = answer.error_code
    whole: list[Any] = getattr(response, parts.answered)
    for element in getattr(answer, parts.answered):
        last = whole[-1] if whole else None
        if parts.answered_inner and last is not None and _names(last) == _names(element):
            getattr(last, parts.answered_inner).extend(getattr(element, parts.answered_inner))
        else:
            whole.append(element)


def _names(element: Any) -> Hashable:
    name: Hashable = (
        getattr(element, "name", None)
        or getattr(element, "topic", None)
        or getattr(element, "topic_id", None)
    )
    return name
