"""Which source of sizes a stream has: the option `sizeSource`, and what the brokers serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.spark.stream.size_sources.contract import FoundSizes, SizeRequest, Source
from trimtab.spark.stream.size_sources.listing import Listing
from trimtab.spark.stream.size_sources.probe import Probe
from trimtab.spark.stream.size_sources.scan import Scan


class Exact:
    """A `Listing` if all brokers support it, otherwise a `Scan`.

    Args:
        client: the consumer's options.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._source: Listing | Scan = Listing(client)

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def tails(self) -> bool:
        return self._source.tails

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def find(
        self, wanted: Mapping[TopicPartition, SizeRequest], changed: Collection[TopicPartition]
    ) -> list[FoundSizes]:
        try:
            return self._source.find(wanted, changed)
        except BrokerError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION or isinstance(self._source, Scan):
                raise
        self._source.close()
        self._source = Scan(self._client)
        return self._source.find(wanted, wanted.keys())

    def close(self) -> None:
        self._source.close()


def make_source(kind: str, client: Mapping[str, str]) -> Source:
    """The source of sizes that the option `sizeSource` selects.

    Raises:
        UsageError: an invalid option of the client.
    """
    return Probe(client) if kind == "probe" else Exact(client)
