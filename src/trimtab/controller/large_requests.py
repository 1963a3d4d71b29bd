"""Requests about very many things, decided a hundred at a time.

What is decided of a topic, partition or resource does not depend on the others of its request. So a
large request is cut into parts, others have their turn between two of them, and the answers are put
together. Each part is written to the journal by itself. Where a request names something twice, more
than a hundred apart, the second finds what the first has done; Kafka refuses both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from trimtab.errors import ErrorCode
from trimtab.server.turns import Steps

AT_ONCE = 100
"""What is decided between two turns: some milliseconds."""


class Parts(NamedTuple):
    """Which arrays of a request and of its response belong together.

    Attributes:
        asked: of the request.
        answered: of the response.
        asked_inner: of an element that is asked about; none if it stands for one thing.
        answered_inner: of an element of the answer.
    """

    asked: str
    answered: str
    asked_inner: str = ""
    answered_inner: str = ""


def decide_in_parts(
    decide: Callable[[Any], Coroutine[Any, Any, Any]], parts: Parts, request: Any
) -> Steps[Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any]:
    """What awaits the answer to a request, after it has been decided: at once if it is small."""
    elements = getattr(request, parts.asked)
    if not elements or (
        len(elements) <= AT_ONCE
        and sum(len(getattr(each, parts.asked_inner, None) or ()) for each in elements) <= AT_ONCE
    ):
        return decide(request)
    return _decide(decide, parts, request)


def _decide(
    decide: Callable[[Any], Coroutine[Any, Any, Any]], parts: Parts, request: Any
) -> Steps[Coroutine[Any, Any, Any]]:
    answers: list[Coroutine[Any, Any, Any]] = []
    try:
        for part in _cut(getattr(request, parts.asked), parts.asked_inner):
            answers.append(decide(replace(request, **{parts.asked: part})))
            yield
    except GeneratorExit:  # nobody waits for the answers any more
        for answer in answers:
            answer.close()
        raise
    return _put_together(answers, parts)


def _cut(elements: list[Any], inner: str) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for element in elements:
        for piece in _cut_inner(element, inner):
            part.append(piece)
            size += 1 + len(getattr(piece, inner, None) or ())
            if size >= AT_ONCE:
                yield part
                part, size = [], 0
    if part:
        yield part


def _cut_inner(element: Any, inner: str) -> Iterator[Any]:
    things = getattr(element, inner, None) or ()
    if len(things) <= AT_ONCE:
        yield element
        return
    for start in range(0, len(things), AT_ONCE):
        yield replace(element, **{inner: things[start : start + AT_ONCE]})


async def _put_together(answers: list[Coroutine[Any, Any, Any]], parts: Parts) -> Any:
    first, *others = await asyncio.gather(*answers)
    whole: list[Any] = getattr(first, parts.answered)
    for number, other in enumerate(others, 1):
        if getattr(first, "error_code", other) == ErrorCode.NONE:
            first.error_code = other.error_code
        for element in getattr(other, parts.answered):
            last = whole[-1] if whole else None
            if parts.answered_inner and last is not None and _names(last) == _names(element):
                getattr(last, parts.answered_inner).extend(getattr(element, parts.answered_inner))
            else:
                whole.append(element)
        if not number % 10:
            await asyncio.sleep(0)
    return first


def _names(element: Any) -> str | None:
    name: str | None = getattr(element, "name", None) or getattr(element, "topic", None)
    return name
