"""The consumer, on one thread.

    with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([("flights", 0), ("flights", 1)])
        for record in consumer:
            print(record.offset, record.value)

`poll` decodes the records on the thread that calls it, not on the loop that fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random

from trimtab.blocking.face import Face, at_once, like, waits
from trimtab.client.arguments import Partition, checked_wait_ms
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.fetcher.plan import Batches
from trimtab.client.options import gather_options
from trimtab.records import Record
from trimtab.runtime.loop_thread import shared


class Consumer(Face[AsyncConsumer]):
    """Reads records of assigned partitions. Use it on one thread at a time, like Kafka's own.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's consumer options, dotted or in snake case, such as
            `auto_offset_reset="earliest"`.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    _closed_error = "the consumer is closed"

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        given = gather_options("consumer", bootstrap_servers, options)
        consumer = AsyncConsumer(given, random=Random())
        self._wrap(consumer, consumer._leave_closing(), shared())

    assign = at_once(AsyncConsumer.assign)
    assignment = at_once(AsyncConsumer.assignment)
    seek = at_once(AsyncConsumer.seek)
    seek_to_beginning = at_once(AsyncConsumer.seek_to_beginning)
    seek_to_end = at_once(AsyncConsumer.seek_to_end)
    pause = at_once(AsyncConsumer.pause)
    resume = at_once(AsyncConsumer.resume)
    paused = at_once(AsyncConsumer.paused)
    problem = at_once(AsyncConsumer.problem)
    beginning_offsets = waits(AsyncConsumer.beginning_offsets)
    end_offsets = waits(AsyncConsumer.end_offsets)
    offsets_for_times = waits(AsyncConsumer.offsets_for_times)
    list_batch_sizes = waits(AsyncConsumer.list_batch_sizes)

    @like(AsyncConsumer.poll)
    def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        limit, timeout = self._client._limit(max_records), checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        return self._client._read(limit) or self._client._read(
            limit if self._await_data(timeout) else 0
        )

    @like(AsyncConsumer.fetch_batches)
    def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        timeout = checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        batches = self._client._read_batches()
        if batches is None and self._await_data(timeout):
            batches = self._client._read_batches()
        return batches

    def __iter__(self) -> Iterator[Record]:
        """Polls for ever: the iterator waits for new records and does not end."""
        while True:
            yield from self.poll()

    @like(AsyncConsumer.position)
    def position(self, partition: Partition) -> int:
        consumer = self._client
        known = consumer._known_position(consumer._assigned(partition))
        return self._run(consumer.position, partition) if known is None else known

    def _submit(self) -> None:
        assignments = self._client._take_changed_assignments()
        if assignments is not None:
            self._thread.call_soon(self._client._fetcher.update, assignments)

    def _await_data(self, timeout: float) -> bool:
        taken = self._client._take(self._client._fetcher.ready)
        if not taken:
            self._thread.run(self._client._fetcher.wait, timeout)
            taken = self._client._take(self._client._fetcher.ready)
        if taken:
            self._thread.call_soon(self._client._fetcher.drained, taken)
        return bool(taken)
