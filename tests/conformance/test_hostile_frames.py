"""Random, mutated and forged frames, sent to a real broker and a real controller.

Both still serve, use no more memory, and no request handler fails. The benchmark stage `patience`
sends more frames, and measures other clients meanwhile.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from trimtab.cluster.embedded import Cluster
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.framing import decode_response, encode_request
from trimtab.kafka.wire.messages import APIS
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from trimtab.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from trimtab.kafka.wire.schema import Field, Request, Schema, schema
from trimtab.kafka.wire.types import WireType

FRAMES = 10_000
FORGED = 3_000
SEED = 20_261_121
GROWTH_KIB = 24 * 1024

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="resident memory is read from /proc")


def batch() -> bytearray:
    builder = BatchBuilder(1 << 16)
    for number in range(10):
        builder.append(1_700_000_000_000 + number, b"key", b"value" * 10, None)
    return builder.build(producer_id=5, producer_epoch=0, base_sequence=0)


def requests() -> list[tuple[Request[Any], int]]:
    """A request of every API, in an old and a new version if they differ in form."""
    produce = ProduceRequest(
        acks=1,
        timeout_ms=100,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=batch())]
            )
        ],
    )
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
            )
        ],
    )
    offsets = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[
            ListOffsetsTopic(
                name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ],
    )
    create = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
        ],
        validate_only=True,
    )
    configs = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=["x"])
        ]
    )
    return [
        (produce, 3),
        (produce, 9),
        (fetch, 4),
        (fetch, 12),
        (offsets, 1),
        (offsets, 7),
        (MetadataRequest(topics=None), 1),
        (
            MetadataRequest(
                topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False
            ),
            12,
        ),
        (FindCoordinatorRequest(key="g", coordinator_keys=[]), 2),
        (FindCoordinatorRequest(coordinator_keys=["g"]), 6),
        (ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4),
        (create, 5),
        (DeleteTopicsRequest(topics=[], topic_names=["nowhere"], timeout_ms=100), 4),
        (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4),
        (configs, 4),
        (DescribeClusterRequest(), 1),
    ]


def mutate(frame: bytes, random: Random) -> bytes:
    """A frame with a few bytes changed, removed, duplicated or cut off; sometimes in its length."""
    body = bytearray(frame[4:])
    for _ in range(random.choice((1, 1, 2))):
        if not body:
            break
        at = random.randrange(len(body))
        kind = random.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 4))
        if kind == 0:
            body[at] = random.randrange(256)
        elif kind == 1:
            body[at : at + 4] = random.choice([b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80\0\0\0"])
        elif kind == 2:
            del body[at : at + random.randrange(1, 9)]
        elif kind == 3:
            body[at:at] = body[at : at + random.randrange(1, 9)]
        else:
            del body[at:]
    length = len(body)
    if random.random() < 0.05:
        length = random.choice([-1, 0, length + 3, 2**31 - 1, -(2**31)])
    return length.to_bytes(4, "big", signed=True) + bytes(body)


def noise(random: Random) -> bytes:
    body = random.randbytes(random.randrange(64))
    if random.random() < 0.5:
        return body
    return len(body).to_bytes(4, "big") + body


NAMES = ("t", "t", "t", "u", "", "broker-0", "0", "1", "__cluster_metadata", "x" * 300, "no such\n")
NUMBERS = (-2, -1, -1, 0, 0, 0, 1, 1, 2, 3, 100)


def invent(kind: Schema, version: int, random: Random, batches: list[bytes]) -> Any:
    """A message that its version can encode, with values that are almost valid."""
    return kind.cls(
        **{
            each.name: invent_field(each, version, random, batches)
            for each in kind.fields
            if each.versions.includes(version)
        }
    )


def invent_field(declared: Field, version: int, random: Random, batches: list[bytes]) -> Any:
    if declared.nullable_versions.includes(version) and random.random() < 0.2:
        return None

    def one() -> Any:
        if isinstance(declared.type, Schema):
            return invent(declared.type, version, random, batches)
        return invent_value(declared.type, random, batches)

    if declared.is_array:
        return [one() for _ in range(random.choice((0, 1, 1, 1, 2, 5)))]
    return one()


def invent_value(kind: WireType, random: Random, batches: list[bytes]) -> Any:
    if kind.name == "bool":
        return random.random() < 0.5
    if kind.name == "float64":
        return random.random()
    if kind.name == "uuid":
        return random.choice((bytes(16), bytes(15) + b"\1", random.randbytes(16)))
    if kind.name == "string":
        return random.choice(NAMES)
    if kind.name in ("bytes", "records"):
        return random.choice((b"", *batches))
    bits = kind.size * 8
    low, high = (
        (0, 2**bits - 1) if kind.code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return min(max(random.choice((*NUMBERS, low, high)), low), high)


def forge(keys: Iterable[int], random: Random) -> bytes:
    """A request frame of a random one of these APIs, in a random supported version."""
    good = bytes(batch())
    batches = [good, good, good + good, good[:-1], good[:70]]
    api = APIS[random.choice(sorted(keys))]
    version = random.randint(api.min_version, api.max_version)
    request = invent(schema(api.request), version, random, batches)
    return b"".join(map(bytes, encode_request(request, version, 1, random.choice(("x", None)))))


def resident_kib() -> int:
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0])


def attack(address: tuple[str, int], frames: list[bytes]) -> int:
    """Send frames, end the stream, and read to the end; returns the number of bytes received."""
    received = 0
    with socket.create_connection(address, timeout=1) as connection:
        try:
            connection.sendall(b"".join(frames))
            # A broker stops serving at the client's end of stream; give it some time before.
            select.select([connection], [], [], 0.002)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1 << 16):
                received += len(data)
        except (OSError, TimeoutError):
            # The broker closed with unread bytes, or a frame asked for a very long poll.
            return received
    return received


def ask(address: tuple[str, int], frame: bytes) -> bytes:
    """The response to a valid frame."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(frame)
        stream = connection.makefile("rb")
        return stream.read(int.from_bytes(stream.read(4), "big"))


def serves(address: tuple[str, int]) -> bool:
    """Whether a new connection gets an answer to a Metadata request, with the test's topic."""
    frame = b"".join(map(bytes, encode_request(MetadataRequest(topics=None), 12, 77, "check")))
    response = decode_response(MetadataResponse, 12, ask(address, frame))
    # Some frames create topics, so there may be others.
    return "t" in [topic.name for topic in response.topics]


def serves_anything(address: tuple[str, int]) -> bool:
    """Whether a new connection is answered, with any topics and brokers."""
    frame = b"".join(map(bytes, encode_request(MetadataRequest(topics=None), 12, 77, "check")))
    return decode_response(MetadataResponse, 12, ask(address, frame)).cluster_id is not None


def test_hostile_frames(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # each closed connection logs a warning
    random = Random(SEED)
    frames = [b"".join(map(bytes, encode_request(*each, 1, "x"))) for each in requests()]
    create = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    config = {"socket.request.max.bytes": 1 << 20, "auto.create.topics.enable": True}
    with Cluster(config=config) as cluster:
        (address,) = cluster.addresses
        for frame in [b"".join(map(bytes, encode_request(create, 9, 1, "x"))), *frames]:
            assert ask(address, frame), "a frame is invalid before its mutation"
        sent = answered = bursts = before = 0
        while sent < FRAMES:
            burst = [
                noise(random) if random.random() < 0.1 else mutate(random.choice(frames), random)
                for _ in range(random.choice((1, 1, 1, 5)))
            ]
            answered += attack(address, burst) > 0
            sent += len(burst)
            bursts += 1
            if not before and sent > FRAMES // 5:
                assert serves(address)
                before = resident_kib()
        grown = resident_kib() - before
        assert serves(address)
    assert not caplog.records, "a request failed inside the broker"
    assert bursts // 10 < answered < bursts * 9 // 10, "the frames are all valid or all invalid"
    assert grown < GROWTH_KIB, f"{grown} KiB more after {sent} frames"


def describes_itself(address: tuple[str, int]) -> bool:
    """Whether a controller answers a new connection."""
    frame = encode_request(DescribeClusterRequest(endpoint_type=2), 1, 77, "check")
    answer = ask(address, b"".join(map(bytes, frame)))
    return bool(decode_response(DescribeClusterResponse, 1, answer).brokers)


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_forged_requests(role: str, caplog: pytest.LogCaptureFixture) -> None:
    """Well-formed requests of every API and version may be executed, as there is no authorizer, but
    no handler fails."""
    caplog.set_level(logging.ERROR, "trimtab.cluster.server")
    random = Random(SEED)
    with Cluster(config={"auto.create.topics.enable": True}) as cluster:
        controller = cluster._controller
        assert controller is not None
        node = cluster._brokers[0].broker if role == "broker" else controller
        address = cluster.addresses[0] if role == "broker" else cluster._controller_address
        for _ in range(FORGED):
            attack(address, [forge(node.listener.apis, random)])
        assert serves_anything(address) if role == "broker" else describes_itself(address)
        assert node.listener.counts.failed == 0
    assert not caplog.records, "a request failed inside the node"
