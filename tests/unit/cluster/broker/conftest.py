"""Brokers without sockets: frames go into a connection and come out of a transport in memory.

Time is virtual, so what waits, waits no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

import pytest

from tests.unit.secret import SECRET
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.server.connection import ServerConnection
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.framing import decode_response, encode_request
from trimtab.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from trimtab.kafka.wire.schema import Request, response_of
from trimtab.sim.world import World

T = TypeVar("T")
Response = TypeVar("Response")


class MemoryTransport(asyncio.Transport):
    """The broker's end of a connection; the test is the other end."""

    def __init__(self, protocol: ServerConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False

    def writelines(self, parts: Any) -> None:
        self.written.append(b"".join(bytes(part) for part in parts))

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 12345) if name == "peername" else default


class Client:
    """The other end of one connection."""

    def __init__(self, broker: Broker) -> None:
        self.connection = ServerConnection(broker.listener)
        self.transport = MemoryTransport(self.connection)
        self.connection.connection_made(self.transport)
        self._correlation_id = 0

    @property
    def responses(self) -> list[bytes]:
        """The response frames received so far, without their length prefix."""
        content, frames = b"".join(self.transport.written), []
        while content and len(content) >= (end := 4 + int.from_bytes(content[:4], "big")):
            frames.append(content[4:end])
            content = content[end:]
        return frames

    def send_bytes(self, data: bytes) -> None:
        """Deliver bytes like a socket: in pieces of the size of the protocol's buffer."""
        while data and not self.transport.closed:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(len(frame).to_bytes(4, "big", signed=True) + frame)

    def send(self, request: Request[object], version: int) -> None:
        self._correlation_id += 1
        self.send_bytes(
            b"".join(bytes(p) for p in encode_request(request, version, self._correlation_id, "t"))
        )

    async def ask(self, request: Request[Response], version: int) -> Response:
        """Send, and wait for the response, which must carry the request's correlation id."""
        count = len(self.responses)
        self.send(request, version)
        while len(self.responses) == count:
            assert not self.transport.closed, "the broker closed the connection"
            await asyncio.sleep(0.001)
        return self.read(request, version)

    def read(self, request: Request[Response], version: int) -> Response:
        """Decode the last response as the one to this request."""
        frame = self.responses[-1]
        assert int.from_bytes(frame[:4], "big") == self._correlation_id
        return decode_response(response_of(type(request)), version, frame)


class Lab:
    """A controller and brokers on virtual disks and a virtual network."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: list[Broker] = []

    def run(
        self,
        scenario: Callable[[], Awaitable[T]],
        brokers: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> T:
        """Run the scenario with this number of brokers."""

        async def run() -> T:
            options = dict(config or {})
            self.controller = ControllerNode(
                3000,
                "lab",
                self.world.disk("controller"),
                SECRET,
                options,
                self.world.now_ms,
                Random(1),
            )
            address = "controller", await self.controller.listen("controller", 9093)
            await self.controller.start()
            self.brokers = [
                Broker(
                    number,
                    "lab",
                    self.world.disk(f"broker-{number}"),
                    address,
                    SECRET,
                    {**options, "node.id": number, "broker.rack": "abc"[number % 3]},
                    self.world.now_ms,
                    Random(number),
                )
                for number in range(brokers)
            ]
            for broker in self.brokers:
                await broker.bind("127.0.0.1", 9092 + broker.id)
            await asyncio.gather(
                *(broker.start("127.0.0.1", 9092 + broker.id) for broker in self.brokers)
            )
            everything = self.controller.controller.journal.end_offset
            await asyncio.gather(*(broker.metadata.reach(everything) for broker in self.brokers))
            result = await scenario()
            await asyncio.gather(*(broker.close(hand_over=False) for broker in self.brokers))
            await self.controller.close()
            return result

        return self.world.run(run())

    def connect(self, broker: int = 0, is_node: bool = False) -> Client:
        client = Client(self.brokers[broker])
        client.connection.is_node = is_node
        return client

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replicas: int = 1,
    ) -> bytes:
        """The new topic's id."""
        response = await self.controller.controller.create_topics(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=replicas,
                        assignments=[],
                        configs=[
                            CreatableTopicConfig(name=key, value=value)
                            for key, value in (config or {}).items()
                        ],
                    )
                ]
            )
        )
        (result,) = response.topics
        assert result.error_code == 0, result.error_message
        topic_id: bytes = result.topic_id
        return topic_id

    def batch(
        self,
        *values: bytes,
        compression: int = 0,
        key: bytes | None = b"k",
        timestamp: int | None = None,
        **identity: Any,
    ) -> bytearray:
        """A producer's batch."""
        builder = BatchBuilder(1 << 20, compression)
        for value in values:
            builder.append(
                self.world.now_ms() if timestamp is None else timestamp, key, value, None
            )
        return builder.build(**identity)

    def produce(
        self,
        topic: str,
        records: bytes | bytearray | None,
        acks: int = 1,
        partition: int = 0,
        topic_id: bytes = bytes(16),
    ) -> ProduceRequest:
        return ProduceRequest(
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=topic_id,
                    partition_data=[PartitionProduceData(index=partition, records=records)],
                )
            ],
        )

    async def append(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Produce a batch at the partition's leader; returns the batch's size."""
        batch = self.batch(*values)
        leader = self.controller.controller.image.topics[topic].partitions[partition].leader
        request = self.produce(topic, batch, partition=partition)
        response = await self.connect(leader).ask(request, 9)
        assert response.responses[0].partition_responses[0].error_code == 0
        return len(batch)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with World(seed=1) as world:
        yield Lab(world)
