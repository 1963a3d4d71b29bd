"""A broker that only counts records, to measure fast producers with.

usage: python -m lab.benchmarks.sink PORT

It serves just enough of Kafka's protocol for a producer: there is one node, and every topic asked
for has six partitions. The sink reads a batch's header, adds the number of records to the
partition's end offset, and discards the batch, without a CRC check or a file. ListOffsets returns
the end offsets, so that a benchmark can check that every record arrived.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

import uvloop

from lab.processes import Broker
from trimtab.kafka.wire.batch_header import read_headers
from trimtab.kafka.wire.codec import decode
from trimtab.kafka.wire.framing import FrameProtocol, decode_request_header, encode_response
from trimtab.kafka.wire.messages import APIS
from trimtab.kafka.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from trimtab.kafka.wire.messages.fetch import FetchRequest
from trimtab.kafka.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

PARTITIONS = 6
# Up to version 12 Produce has topic names, which are all that the sink knows. Fetch is advertised
# but not answered: librdkafka writes record batches only for brokers that advertise it.
_VERSIONS = {
    ProduceRequest.api_key: (0, 12),
    FetchRequest.api_key: (4, 11),
    ListOffsetsRequest.api_key: (1, 7),
    MetadataRequest.api_key: (0, 9),
    ApiVersionsRequest.api_key: (0, 3),
    InitProducerIdRequest.api_key: (0, 4),
}


class Sink(Broker):
    """The sink in its own process, started and measured like a broker."""

    name = "a sink"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "lab.benchmarks.sink", str(self.port)]


class _Node:
    def __init__(self, port: int) -> None:
        self.port = port
        self.ends: dict[str, list[int]] = {}
        self.answers: dict[int, Callable[[Any], object]] = {
            ProduceRequest.api_key: self.produce,
            ListOffsetsRequest.api_key: self.list_offsets,
            MetadataRequest.api_key: self.describe,
            ApiVersionsRequest.api_key: self.list_versions,
            InitProducerIdRequest.api_key: self.identify,
        }

    def list_versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in _VERSIONS.items()
        ]
        return ApiVersionsResponse(api_keys=keys)

    def identify(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=1, producer_epoch=0)

    def describe(self, request: MetadataRequest) -> MetadataResponse:
        names = [topic.name or "" for topic in request.topics or ()] or list(self.ends)
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)],
            cluster_id="sink",
            controller_id=0,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index, leader_id=0, replica_nodes=[0], isr_nodes=[0]
                        )
                        for index in range(len(self._ends_of(name)))
                    ],
                )
                for name in names
            ],
        )

    def produce(self, request: ProduceRequest) -> ProduceResponse | None:
        topics = []
        for topic in request.topic_data:
            ends = self._ends_of(topic.name)
            partitions = []
            for data in topic.partition_data:
                base = ends[data.index]
                for header in read_headers(cast(memoryview, data.records)):
                    ends[data.index] += header.record_count
                partitions.append(PartitionProduceResponse(index=data.index, base_offset=base))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=partitions))
        return ProduceResponse(responses=topics) if request.acks else None

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            offset=self._ends_of(topic.name)[each.partition_index],
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _ends_of(self, topic: str) -> list[int]:
        return self.ends.setdefault(topic, [0] * PARTITIONS)


class _Connection(FrameProtocol):
    def __init__(self, node: _Node) -> None:
        super().__init__()
        self._node = node

    def frame_received(self, frame: memoryview) -> None:
        header = decode_request_header(frame)
        request: Any = decode(
            APIS[header.api_key].request, header.api_version, frame, header.body, True
        )
        answer = self._node.answers[header.api_key](request)
        if answer is not None and self.transport is not None:
            self.transport.writelines(
                encode_response(answer, header.api_version, header.correlation_id)
            )


async def _serve(port: int) -> None:
    node = _Node(port)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(node), "127.0.0.1", port
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
