# mypy: allow-untyped-decorators, no-warn-return-any
"""`send` of a producer, compiled.

`Producer` and `AsyncProducer` inherit it, so that a call reaches the batch without another Python
frame. If `send` has to wait, it calls their `_send_when_possible`.
"""

from asyncio import sleep
from collections.abc import Callable
from typing import Any

import cython

from trimtab.client.accumulator.placement_cy import Placement
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.kafka.arguments import checked_headers, checked_topic
from trimtab.kafka.errors import NotSerialized, UsageError
from trimtab.kafka.records import Headers, InContext, Serializers

if cython.compiled:
    from cython.cimports.trimtab.client.accumulator.placement_cy import (  # type: ignore[no-redef]
        Placement,
    )

# After this many bytes of complete batches `send` lets the sender run. Otherwise the sender's
# thread would run only every 5 ms (`sys.getswitchinterval`), and beside a coroutine that does not
# wait never; and each time it sends no more than its requests in flight may hold.
_UNSEEN_BYTES = cython.declare(cython.longlong, 262144)


@cython.cclass
class Intake:
    """`send` of a producer that any thread may use."""

    _placement: Placement
    _serializers: Serializers | None

    def __init__(self, placement: Placement, serializers: Serializers | None = None) -> None:
        self._placement = placement
        self._serializers = serializers

    @cython.annotation_typing(False)
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery:
        """Append one record to a batch; waits only for the topic's metadata and for buffer memory.

        Args:
            value, key: bytes, bytearray, memoryview or None; with a serializer what that takes. A
                None is sent as null, and no serializer gets it.
            headers: a list of (name, value) pairs, as in a consumed record.
            partition: the partition's number; if None, the key's hash decides, or without a key the
                partitioner. An unknown partition is waited for, as it may just have been added.
            timestamp: milliseconds since the Unix epoch, -1 for none; now if None.
            on_delivery: called once with the `Delivery`, on the client's thread, when the outcome
                is known. Keep it short: nothing is sent or received while it runs. An exception it
                raises is logged.

        Raises:
            NotSerialized: a serializer raised an error; nothing was sent.
            UsageError: the record cannot be sent as it is, or the producer is closed; says why.
            BrokerError: the cluster refuses the topic.
            Unavailable: topic, partition or buffer memory was not available within `max.block.ms`.
        """
        if self._placement is None:
            raise UsageError("the producer was not initialised: call its __init__ first")
        if self._placement._unseen_bytes > _UNSEEN_BYTES:
            self._placement._unseen_bytes = 0
            self._hand_over()
        if self._serializers is not None:
            return self._send_objects(topic, value, key, headers, partition, timestamp, on_delivery)
        delivery = self._placement.append_record(
            topic, value, key, headers, partition, timestamp, on_delivery, None
        )
        if delivery is None:
            return self._send_when_possible(
                topic, value, key, headers, partition, timestamp, on_delivery
            )
        return delivery

    @cython.cfunc
    def _send_objects(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp: Any,
        on_delivery: Any,
    ) -> Any:
        """`send` with serializers: of its own, because arguments that are replaced cost time."""
        topic, value, key, headers = _serialized(self._serializers, topic, value, key, headers)
        delivery = self._placement.append_record(
            topic, value, key, headers, partition, timestamp, on_delivery, None
        )
        if delivery is None:
            return self._send_when_possible(
                topic, value, key, headers, partition, timestamp, on_delivery
            )
        return delivery

    def __len__(self) -> int:
        """How many records were sent and are neither acknowledged nor failed."""
        return 0 if self._placement is None else self._placement.unacknowledged

    def __bool__(self) -> bool:
        """True, however many records there are."""
        return True

    def _hand_over(self) -> None:
        """Let the sender's thread run."""
        raise NotImplementedError

    def _send_when_possible(self, *record: Any) -> Any:
        raise NotImplementedError


@cython.cclass
class AsyncIntake:
    """`Intake` for an event loop: `send` is awaited."""

    _placement: Placement
    _serializers: Serializers | None

    def __init__(self, placement: Placement, serializers: Serializers | None = None) -> None:
        self._placement = placement
        self._serializers = serializers

    @cython.annotation_typing(False)
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Any:  # a Delivery; Cython's coroutines return nothing narrower
        """Append one record to a batch; `await` the returned delivery for the outcome.

        Arguments and errors as of `Producer.send`. It waits for the topic's metadata and for buffer
        memory, and after every 256 KiB of complete batches lets the loop send them.
        """
        if self._placement is None:
            raise UsageError("the producer was not initialised: call its __init__ first")
        if self._placement._unseen_bytes > _UNSEEN_BYTES:
            self._placement._unseen_bytes = 0
            await sleep(0)
        if self._serializers is not None:
            topic, value, key, headers = _serialized(self._serializers, topic, value, key, headers)
        delivery = self._placement.append_record(
            topic, value, key, headers, partition, timestamp, on_delivery, None
        )
        if delivery is None:
            return await self._send_when_possible(
                topic, value, key, headers, partition, timestamp, on_delivery
            )
        return delivery

    def __len__(self) -> int:
        """How many records were sent and are neither acknowledged nor failed."""
        return 0 if self._placement is None else self._placement.unacknowledged

    def __bool__(self) -> bool:
        """True, however many records there are."""
        return True

    async def _send_when_possible(self, *record: Any) -> Any:
        raise NotImplementedError


@cython.cfunc
def _serialized(serializers: Serializers, topic: Any, value: Any, key: Any, headers: Any) -> Any:
    """Topic, value, key and headers, of which the serializers have made bytes."""
    if type(topic) is not str:
        topic = checked_topic(topic)
    of_key, of_value = serializers
    if type(of_key) is InContext or type(of_value) is InContext:
        headers = [] if headers is None else list(checked_headers(headers))  # theirs to add to
    if key is not None and of_key is not None:
        key = _converted(of_key, "key", topic, headers, key)
    if value is not None and of_value is not None:
        value = _converted(of_value, "value", topic, headers, value)
    return topic, value, key, headers


@cython.cfunc
def _converted(serializer: Any, part: str, topic: Any, headers: Any, data: Any) -> Any:
    try:
        if type(serializer) is InContext:
            made = serializer.convert(topic, headers, data)
        else:
            made = serializer(data)
        if made is not None and not isinstance(made, (bytes, bytearray, memoryview)):
            raise TypeError(f"it returned {type(made).__name__}, not bytes or None")
    except Exception as error:
        raise NotSerialized(topic, part, error) from error
    return made
