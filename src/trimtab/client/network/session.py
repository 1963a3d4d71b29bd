"""What every client has on its event loop: options, connections and metadata."""

from __future__ import annotations

from random import Random

from trimtab.client.network.connections import Connections
from trimtab.client.network.coordinator import CoordinatorKind, CoordinatorLink
from trimtab.client.network.metadata import Metadata
from trimtab.client.network.options import Options
from trimtab.kafka.errors import UsageError


class Session:
    """One client's link to the cluster. Created on any thread, used on one event loop.

    Args:
        creates_topics: whether the brokers may create the topics that the client asks for.

    Attributes:
        is_closed: whether the client's user has closed it.
        is_forked: whether this is a process forked from the client's.
    """

    def __init__(self, options: Options, random: Random, creates_topics: bool = False) -> None:
        self.options = options
        self.random = random
        self.backoff = options.backoff()
        self.connections = Connections(options.bootstrap, options.connection_options(), random)
        self.metadata = Metadata(
            self.connections,
            max_age=options.seconds("metadata.max.age.ms"),
            backoff=self.backoff,
            create_topics=creates_topics,
            random=random,
        )
        self.is_closed = self.is_forked = False

    @property
    def timeout(self) -> float:
        """Seconds that a call of a consumer or admin client takes at most
        (`default.api.timeout.ms`)."""
        return self.options.seconds("default.api.timeout.ms")

    def coordinator(self, kind: CoordinatorKind, key: str) -> CoordinatorLink:
        """A link to the coordinator of a group's id or a transactional id."""
        return CoordinatorLink(self.connections, kind, key, self.backoff, self.random)

    def check_open(self) -> None:
        """Raise UsageError if the client is closed, or belongs to the process that this one was
        forked from."""
        name = _NAMES[self.options.kind]
        if self.is_forked:
            raise UsageError(
                f"this {name} was created before the process was forked, and works only in the"
                f" process that created it; create one after the fork, or start processes with the"
                " 'spawn' method"
            )
        if self.is_closed:
            raise UsageError(f"the {name} is closed")

    async def close(self, end: float | None = None) -> None:
        """Close the connections; `end`: when to stop waiting for brokers, in the loop's time."""
        await self.metadata.close()
        await self.connections.close(end)


_NAMES = {"producer": "producer", "consumer": "consumer", "admin": "admin client"}
