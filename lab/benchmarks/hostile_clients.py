"""Hostile clients that a broker must withstand: half-open, slow, garbling, replaying.

Each is a context manager. Clients that keep sending have a thread of their own; its error is
raised on leaving the context.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, Self, TypeVar

from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.framing import decode_response, encode_request
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from trimtab.kafka.wire.schema import Request, response_of

SLOW_ASKS_BYTES = 50 * 1024 * 1024
PRODUCE_VERSION, FETCH_VERSION = 9, 11

_SEED = 20_261_122
_TIMEOUT_S = 10.0

Address = tuple[str, int]
Response = TypeVar("Response")


def write_frame(request: Request[object], version: int, correlation_id: int = 1) -> bytes:
    """A request frame with its length."""
    return b"".join(map(bytes, encode_request(request, version, correlation_id, "patience")))


class BlockingConnection:
    """One connection to a broker, with one request at a time.

    Attributes:
        response_bytes: of the last response, its header included.
    """

    def __init__(self, address: Address) -> None:
        self.response_bytes = 0
        self.socket = socket.create_connection(address, _TIMEOUT_S)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self.socket.close()

    def ask(self, request: Request[Response], version: int) -> Response:
        """Send a request and return its response.

        Raises:
            ConnectionError: the broker closed the connection.
        """
        self.socket.sendall(write_frame(request, version))
        frame = self._stream.read(int.from_bytes(self._stream.read(4), "big"))
        if not frame:
            raise ConnectionError("the broker closed the connection")
        self.response_bytes = len(frame)
        return decode_response(response_of(type(request)), version, frame)


def serves(address: Address) -> bool:
    """Whether a new connection gets an answer to a Metadata request."""
    try:
        with BlockingConnection(address) as line:
            return bool(line.ask(MetadataRequest(topics=[]), 9).brokers)
    except OSError:
        return False


def build_batch(
    producer_id: int, epoch: int, sequence: int, records: int = 1, value: bytes = b"v"
) -> bytearray:
    builder = BatchBuilder(1 << 20)
    now_ms = time.time_ns() // 1_000_000
    for _ in range(records):
        builder.append(now_ms, None, value, None)
    return builder.build(producer_id, epoch, sequence)


def write_produce(topic: str, batch: bytes | bytearray, partition: int = 0) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


class HalfOpen:
    """Opens connections and leaves them idle, after sending nothing, half a frame, or the first
    `head_bytes` of a frame of 100 MB. A context manager."""

    def __init__(self, address: Address, connections: int, head_bytes: int = 16_000) -> None:
        self._address = address
        self._count = connections
        whole = write_frame(MetadataRequest(topics=None), 9)
        self._heads = (
            b"",
            whole[: len(whole) // 2],
            (100 * 1024 * 1024).to_bytes(4, "big") + bytes(head_bytes),
        )
        self._open: list[socket.socket] = []
        self.outcomes: dict[str, object] = {}

    def __enter__(self) -> Self:
        for number in range(self._count):
            connection = socket.create_connection(self._address, _TIMEOUT_S)
            connection.sendall(self._heads[number % len(self._heads)])
            connection.setblocking(False)
            self._open.append(connection)
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._open:
            connection.close()

    @property
    def left(self) -> int:
        """The number of connections that the broker has not closed."""
        return sum(not is_closed(connection) for connection in self._open)


def is_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed a non-blocking connection, on which it has sent nothing."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _HostileClient:
    """A client in a thread, which runs until the context ends.

    Attributes:
        failure: the error that ended the thread early.
        outcomes: counts of the results of its requests.
    """

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run_safely, daemon=True)
        self.failure: Exception | None = None
        self.outcomes: Any = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join(3 * _TIMEOUT_S)
        if self.failure is not None:
            raise self.failure

    def _run_safely(self) -> None:
        try:
            self._run()
        except Exception as error:  # raised on leaving the context
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def _paced(self, per_s: float) -> Iterator[int]:
        """The numbers 0, 1, …, at most `per_s` per second, until the context ends."""
        began, number = time.monotonic(), 0
        while not self._ends.wait(max(0.0, began + number / per_s - time.monotonic())):
            yield number
            number += 1


class SlowReaders(_HostileClient):
    """Connections that fetch much of a topic at once, and read the response slowly.

    Attributes:
        received: bytes received, by connection.
    """

    def __init__(
        self,
        address: Address,
        topic: str,
        partitions: int,
        connections: int,
        bytes_per_s: int = 1024,
        partition_max_bytes: int = 1 << 20,
    ) -> None:
        super().__init__()
        self._bytes_per_s = bytes_per_s
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=SLOW_ASKS_BYTES,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=number,
                            fetch_offset=0,
                            partition_max_bytes=partition_max_bytes,
                        )
                        for number in range(partitions)
                    ],
                )
            ],
        )
        self._open: list[socket.socket] = []
        for _ in range(connections):
            connection = socket.socket()
            # A small receive buffer, as bytes in the kernel's buffer count as sent.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(address)
            connection.sendall(write_frame(request, FETCH_VERSION))
            connection.setblocking(False)
            self._open.append(connection)
        self.received = [0] * connections

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for connection in self._open:
            connection.close()

    def _run(self) -> None:
        for _ in self._paced(1.0):
            for number, connection in enumerate(self._open):
                with suppress(BlockingIOError):
                    self.received[number] += len(connection.recv(self._bytes_per_s))


def garble(frame: bytes, random: Random) -> bytes:
    """A frame with a few bytes changed, truncated or duplicated; or random bytes."""
    if random.random() < 0.2:
        body = random.randbytes(random.randrange(1, 200))
        return len(body).to_bytes(4, "big") + body
    garbled = bytearray(frame[4:])
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(garbled))
        kind = random.randrange(5)
        if kind < 2:
            garbled[at] = random.randrange(256)
        elif kind == 2:
            garbled[at : at + 4] = random.choice([b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80\0\0\0"])
        elif kind == 3:
            garbled[at:at] = garbled[at : at + random.randrange(1, 9)]
        else:
            del garbled[max(1, at) :]
    length = len(garbled)
    if random.random() < 0.1:
        length = random.choice([-1, length + 3, 2**31 - 1, -(2**31)])
    return length.to_bytes(4, "big", signed=True) + bytes(garbled)


class Garblers(_HostileClient):
    """Sends garbled frames, each over its own connection, `per_s` per second.

    Attributes:
        outcomes: how many frames were answered, and how many connections closed without an answer.
    """

    def __init__(self, address: Address, topic: str, per_s: float) -> None:
        super().__init__()
        self._address = address
        self._per_s = per_s
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchTopic(topic=topic, partitions=[wanted])
        self._frames = [
            write_frame(write_produce(topic, build_batch(-1, -1, -1, 10)), PRODUCE_VERSION),
            write_frame(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[fetch]), FETCH_VERSION),
            write_frame(MetadataRequest(topics=[]), 9),
            write_frame(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4),
        ]
        self.outcomes: Counter[str] = Counter()

    def _run(self) -> None:
        random = Random(_SEED)
        for _ in self._paced(self._per_s):
            with socket.create_connection(self._address, _TIMEOUT_S) as connection:
                try:
                    connection.sendall(garble(random.choice(self._frames), random))
                    connection.shutdown(socket.SHUT_WR)
                    answered = bool(connection.recv(4))
                except OSError:
                    answered = False
            self.outcomes["answered" if answered else "closed"] += 1


class Replayers(_HostileClient):
    """Sends an idempotent producer's requests: replayed, out of order, with a stale epoch, forged.

    Attributes:
        outcomes: counts of error codes, by kind of request.
    """

    def __init__(self, address: Address, topic: str, per_s: float) -> None:
        super().__init__()
        self._address = address
        self._topic = topic
        self._per_s = per_s
        self.outcomes: dict[str, Counter[str]] = {}

    def _run(self) -> None:
        with BlockingConnection(self._address) as line:
            identity = line.ask(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
            )
            forgeries = forge(identity.producer_id)
            first = line.ask(write_produce(self._topic, forgeries["first"][0]), PRODUCE_VERSION)
            placed = first.responses[0].partition_responses[0]
            kinds = [kind for kind in forgeries if kind != "first"]
            for number in self._paced(self._per_s):
                kind = kinds[number % len(kinds)]
                batch, expected = forgeries[kind]
                answer = line.ask(write_produce(self._topic, bytes(batch)), PRODUCE_VERSION)
                part = answer.responses[0].partition_responses[0]
                code = ErrorCode(part.error_code)
                self.outcomes.setdefault(kind, Counter())[code.name] += 1
                if code is not expected or (not code and part.base_offset != placed.base_offset):
                    raise RuntimeError(f"{kind}: {code.name} at offset {part.base_offset}")


def forge(producer_id: int) -> dict[str, tuple[bytearray, ErrorCode]]:
    """Batches of an idempotent producer with epoch 1, by kind, each with the error code that the
    broker must answer after the first is stored."""
    damaged = build_batch(producer_id, 1, 5)
    damaged[-1] ^= 1
    return {
        "first": (build_batch(producer_id, 1, 0, 5), ErrorCode.NONE),
        "replayed": (build_batch(producer_id, 1, 0, 5), ErrorCode.NONE),
        "a gap": (build_batch(producer_id, 1, 7), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        "overlapping": (
            build_batch(producer_id, 1, 3, 5),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ),
        "a stale epoch": (build_batch(producer_id, 0, 5), ErrorCode.INVALID_PRODUCER_EPOCH),
        "a new epoch, not from 0": (
            build_batch(producer_id, 2, 5),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ),
        "a wrong CRC": (damaged, ErrorCode.CORRUPT_MESSAGE),
    }
