"""Decides large requests in parts.

A request about many topics or resources is cut into parts. Each part is decided and appended to
the journal on its own, and other requests are served between two parts. The parts share a
`WholeRequest`: duplicate names, the number of records, and the replicas granted with
`validate_only`. The request is answered once, when all its parts are on disk and replayed by the
brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterator
from copy import copy
from typing import Any, NamedTuple

from trimtab.cluster.controller.decision import WholeRequest
from trimtab.cluster.server.turns import Steps
from trimtab.kafka.errors import ErrorCode

AT_ONCE = 50
"""Topics or resources that are decided in one step: some milliseconds of work."""
_COUNTED_AT_ONCE = 4000
_PARTITIONS_A_TOPIC = 20

Decide = Callable[[Any, WholeRequest], Any]
"""Decides a request. Returns the coroutine of the response; if `WholeRequest.is_in_parts`, the
part's response, which may only be sent after `Reach`."""
Reach = Callable[[Any, WholeRequest], Coroutine[Any, Any, Any]]
"""Returns a response once its decisions are on disk and replayed by the brokers."""


class Parts(NamedTuple):
    """The names of the arrays of a request, and of the matching arrays of its response.

    Attributes:
        asked: the request's array.
        answered: the response's array.
        asked_inner: the array within an element of `asked`; empty if there is none.
        answered_inner: the array within an element of `answered`.
        name: returns an element's name, which must be unique in the request.
        answers_once: whether a duplicate name gets one result, at its first place.
        partitions: returns the partitions that an element asks for; 20 cost as much as a topic.
    """

    asked: str
    answered: str
    asked_inner: str = ""
    answered_inner: str = ""
    name: Callable[[Any], Hashable] | None = None
    answers_once: bool = False
    partitions: Callable[[Any], int] = lambda element: 0

    def size(self, element: Any) -> int:
        """The cost of an element, in topics or resources."""
        inner = len(getattr(element, self.asked_inner, None) or ())
        return 1 + inner + self.partitions(element) // _PARTITIONS_A_TOPIC


def decide_in_parts(
    decide: Decide, reach: Reach, parts: Parts, request: Any
) -> Steps[Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any]:
    """Decide a request: at once if it is small, else in steps. Returns the coroutine of the
    response."""
    elements = getattr(request, parts.asked)
    if not elements or (
        len(elements) <= AT_ONCE and sum(map(parts.size, elements)) - len(elements) <= AT_ONCE
    ):
        return decide(request, WholeRequest())  # type: ignore[no-any-return]
    return _decide(decide, reach, parts, request, elements)


def _decide(
    decide: Decide, reach: Reach, parts: Parts, request: Any, elements: list[Any]
) -> Steps[Coroutine[Any, Any, Any]]:
    whole = WholeRequest(is_in_parts=True)
    if parts.name is not None:
        for start in range(0, len(elements), _COUNTED_AT_ONCE):
            whole.name_counts.update(map(parts.name, elements[start : start + _COUNTED_AT_ONCE]))
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


def _cut(elements: list[Any], parts: Parts, whole: WholeRequest) -> Iterator[list[Any]]:
    """The elements in parts. A part is empty if very many elements were only duplicates."""
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
            if whole.name_counts[name] > 1:
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
    """A copy of the message with other elements in one of its arrays."""
    changed = copy(message)
    setattr(changed, name, things)
    return changed


def _add(response: Any, answer: Any, parts: Parts) -> None:
    """Append the results of a part's response to the response so far."""
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
