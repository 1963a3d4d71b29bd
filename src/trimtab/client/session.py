"""The state of a consumer or admin client on its event loop: connections, metadata, offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from trimtab.client.fetcher.offsets import Isolation, Offsets
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata
from trimtab.client.options import Options, gather_options
from trimtab.config import OptionTable


class Session:
    """One client's link to the cluster. Created on any thread, used on one event loop.

    Args:
        table: `CONSUMER` or `ADMIN`.
        bootstrap_servers, given: as for `gather_options`.

    Raises:
        UsageError: an unknown option, a value out of range, or no bootstrap servers.
    """

    def __init__(
        self,
        table: OptionTable,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
        given: Mapping[str, object],
        random: Random,
    ) -> None:
        self.options = Options(table, gather_options(table.kind, bootstrap_servers, given))
        self.timeout = self.options.seconds("default.api.timeout.ms")
        self.backoff = self.options.backoff()
        self.random = random
        self.connections = Connections(
            self.options.bootstrap, self.options.connection_options(), random
        )
        self.metadata = Metadata(
            self.connections,
            max_age=self.options.seconds("metadata.max.age.ms"),
            backoff=self.backoff,
            create_topics=False,
            random=random,
        )
        self.offsets = Offsets(
            self.connections,
            self.metadata,
            backoff=self.backoff,
            random=random,
        )

    async def close(self) -> None:
        await self.metadata.close()
        await self.connections.close()


def isolation(options: Options) -> Isolation:
    """The option `isolation.level`."""
    return Isolation[options.text("isolation.level").upper()]
