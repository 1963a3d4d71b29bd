"""The topics that a consumer subscribes to: names, or an expression that names must match.

The client matches a compiled Python expression; the group's coordinator evaluates a
`SubscriptionPattern`, in RE2's syntax (KIP-848).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from trimtab.client.network.metadata import Metadata
from trimtab.kafka.arguments import checked_names, checked_text, shown
from trimtab.kafka.errors import ErrorCode, KafkaError, Unavailable, UsageError
from trimtab.kafka.topic_name import find_fault

logger = logging.getLogger("trimtab.client")


@dataclass(frozen=True)
class SubscriptionPattern:
    """An expression that the group's coordinator evaluates (KIP-848): the whole name must match.

    In RE2's syntax. The members of a group agree on its topics, since they have only one view of
    them, and the client asks for no list of all topics.

    Raises:
        UsageError: it is not text, or it is empty.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not checked_text("pattern of a SubscriptionPattern", self.pattern):
            raise UsageError("SubscriptionPattern(''): is empty; write .* for all topics")


Topics: TypeAlias = frozenset[str] | re.Pattern[str] | SubscriptionPattern
"""The names, or the expression that the whole name must match."""


def checked_topics(topics: object) -> Topics:
    """Raises:
    UsageError: neither names of topics nor an expression.
    """
    if isinstance(topics, SubscriptionPattern):
        return topics
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise UsageError(f"pattern {shown(topics)}: must be text; leave the b out")
        return topics
    names = checked_names("topics", topics)
    for name in names:
        if (fault := find_fault(name)) is not None:
            raise UsageError(
                f"topics={shown(topics)}: {fault} To subscribe to all topics whose whole"
                f" names match an expression, give re.compile({name!r}), not a list"
            )
    if not names:
        raise UsageError("topics=[]: name at least one topic; unsubscribe() ends a subscription")
    return frozenset(names)


class TopicFinder:
    """Finds the topics whose names match an expression, and those that come and go.

    Args:
        interval: seconds between searches (`metadata.max.age.ms`).
        excludes_internal: whether internal topics never match (`exclude.internal.topics`).
        on_change: called with the names each time that they have changed.

    Attributes:
        problem: why it has found no topic; None if it has.
    """

    def __init__(
        self,
        metadata: Metadata,
        pattern: re.Pattern[str],
        interval: float,
        excludes_internal: bool,
        on_change: Callable[[frozenset[str]], None],
    ) -> None:
        self._metadata = metadata
        self._pattern = pattern
        self._interval = interval
        self._excludes_internal = excludes_internal
        self._on_change = on_change
        self.problem: KafkaError | None = None

    async def run(self) -> None:
        """Search until cancelled."""
        found: frozenset[str] | None = None
        while True:
            wait = self._interval
            try:
                names = await self._find()
            except KafkaError as error:
                self.problem = error
                logger.info("searching topics that match %s: %s", self._pattern.pattern, error)
                wait = min(1.0, wait)
            else:
                self.problem = None
                if not names:
                    self.problem = Unavailable(
                        f"no topic's name matches {self._pattern.pattern!r}; the whole name must"
                        " match, so end it with .* for all that begin with it"
                    )
                if names != found:
                    found = names
                    if self.problem is not None:
                        logger.warning("%s", self.problem)
                    self._on_change(names)
            await asyncio.sleep(wait)

    async def _find(self) -> frozenset[str]:
        response = await self._metadata.fetch(None)
        return frozenset(
            topic.name
            for topic in response.topics
            if topic.name
            and topic.error_code == ErrorCode.NONE
            and not (topic.is_internal and self._excludes_internal)
            and self._pattern.fullmatch(topic.name)
        )
