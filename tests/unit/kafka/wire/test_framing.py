"""Frames and headers, and the protocol that takes frames off a connection."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import tracemalloc
import weakref
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.framing import (
    FrameProtocol,
    RequestHeader,
    decode_correlation_id,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from trimtab.kafka.wire.messages import ApiVersionsRequest, MetadataRequest, ProduceRequest
from trimtab.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from trimtab.kafka.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from trimtab.kafka.wire.messages.metadata import MetadataResponse
from trimtab.kafka.wire.messages.produce import PartitionProduceData, TopicProduceData


def joined(parts: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(parts)


def test_request_has_its_bytes_before_flexible_versions() -> None:
    frame = joined(encode_request(MetadataRequest(topics=None), 1, 7, "me"))
    assert frame == bytes.fromhex("00000010  0003 0001 00000007 0002 6d65  ffffffff")
    assert decode_request_header(frame[4:]) == RequestHeader(3, 1, 7, "me", 12)


def test_request_has_its_bytes_in_flexible_versions() -> None:
    """The client id keeps its two-byte length; tags come after it."""
    frame = joined(encode_request(ApiVersionsRequest(), 3, -1, None))
    assert frame == bytes.fromhex("0000000e  0012 0003 ffffffff ffff 00  01 01 00")
    assert decode_request_header(frame[4:]) == RequestHeader(18, 3, -1, None, 11)


def test_response_has_its_bytes() -> None:
    response = MetadataResponse(brokers=[], topics=[])
    old = joined(encode_response(response, 0, 9))
    assert old == bytes.fromhex("0000000c  00000009  00000000 00000000")
    flexible = joined(encode_response(response, 12, 9))
    assert flexible == bytes.fromhex("00000011  00000009 00  00000000 01 00 ffffffff 01 00")
    for version, frame in ((0, old), (12, flexible)):
        assert decode_correlation_id(frame[4:]) == 9
        assert decode_response(MetadataResponse, version, frame[4:]) == response


def test_api_versions_response_never_has_tags_in_its_header() -> None:
    response = ApiVersionsResponse(api_keys=[])
    frame = joined(encode_response(response, 3, 9))
    assert frame == bytes.fromhex("0000000c  00000009  0000 01 00000000 00")
    assert decode_response(ApiVersionsResponse, 3, frame[4:]) == response


def test_api_versions_response_of_version_0_is_understood_in_any_version() -> None:
    response = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
    )
    frame = joined(encode_response(response, 0, 1))[4:]
    assert decode_response(ApiVersionsResponse, 4, frame) == response


def test_response_header_with_tags_is_skipped_over() -> None:
    body = joined(encode_response(MetadataResponse(brokers=[], topics=[]), 12, 9))[9:]
    frame = bytes.fromhex("00000009  02  00 01 aa  7f 00") + body
    assert decode_response(MetadataResponse, 12, frame) == MetadataResponse(brokers=[], topics=[])


def test_large_records_are_sent_uncopied() -> None:
    records = bytearray(5000)
    request = ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=records)]
            )
        ],
    )
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[PartitionData(partition_index=0, high_watermark=1, records=records)],
            )
        ]
    )
    for parts in (encode_request(request, 9, 1, "me"), encode_response(response, 12, 1)):
        assert [part is records for part in parts] == [False, True, False]
        (length,) = struct.unpack_from(">i", parts[0])
        assert length == len(joined(parts)) - 4


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_header_of_an_unknown_api_versions_version_is_read(version: int) -> None:
    """It has to be answered, with UNSUPPORTED_VERSION."""
    frame = bytes.fromhex("0012") + struct.pack(">hi", version, 3) + bytes.fromhex("0001 61 00 ff")
    assert decode_request_header(frame) == RequestHeader(18, version, 3, "a", 12)


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        ("", "in 0 bytes"),
        ("0003 0001 00000007 00", "in 9 bytes"),
        ("0003 0001 00000007 0005 6d65", "client id of 5 bytes does not fit"),
        ("0003 0001 00000007 fffe", "client id of length -2"),
        ("0003 0001 00000007 0001 ff", "codec can't decode"),
        ("0003 0009 00000007 0001 61", "in 11 bytes"),
        ("0003 0009 00000007 0001 61 01 00 05 00", "tagged field has the length 5"),
        ("0063 0000 00000007 0001 61", "API 99 is not served"),
        ("4745 5420 2f20 4854", "in 8 bytes"),
    ],
)
def test_frame_without_a_request_header_is_corrupt(frame: str, fault: str) -> None:
    with pytest.raises(CorruptData, match=fault):
        decode_request_header(bytes.fromhex(frame))


@pytest.mark.parametrize("frame", ["", "000000", "00000001", "00000001 01 05"])
def test_frame_without_a_response_is_corrupt(frame: str) -> None:
    with pytest.raises(CorruptData):
        decode_response(MetadataResponse, 12, bytes.fromhex(frame))


def test_frame_without_a_correlation_id_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="in 3 bytes"):
        decode_correlation_id(b"abc")


class Wire(asyncio.Transport):
    """The end of a connection that only remembers whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Frames(FrameProtocol):
    """Keeps the views of all frames, as a broker does that has them waiting."""

    def __init__(
        self, max_frame_bytes: int = 64 * 1024 * 1024, keeps_buffers: bool = False
    ) -> None:
        super().__init__(max_frame_bytes, keeps_buffers=keeps_buffers)
        self.frames: list[memoryview] = []
        self.refused: list[int] = []
        self.wire = Wire()
        self.connection_made(self.wire)

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(frame)

    def frame_refused(self, length: int) -> None:
        self.refused.append(length)


def deliver(protocol: FrameProtocol, data: bytes, sizes: Callable[[], int]) -> None:
    """Receive `data` as a loop does: at most the protocol's buffer, and `sizes()`, at once."""
    position = 0
    while position < len(data):
        room = protocol.get_buffer(-1)
        assert len(room) > 0, "a loop takes an empty buffer for a fault"
        count = min(len(room), sizes(), len(data) - position)
        room[:count] = data[position : position + count]
        position += count
        protocol.buffer_updated(count)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


FRAME_SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([8187, 8188, 8189, 20_000, 131_068, 131_069, 300_000])
)


@settings(max_examples=60)
@given(sizes=st.lists(FRAME_SIZES, max_size=30), seed=st.integers(0, 1000))
def test_frames_arrive_whole_however_they_are_cut(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    payloads = [rng.randbytes(size) for size in sizes]
    protocol = Frames()
    largest = rng.choice((50, 1000, 9000, 200_000))
    sent = b"".join(map(framed, payloads))
    deliver(protocol, sent, lambda: rng.randint(1, largest) if len(sent) < 10**5 else 200_000)
    # All views are still held, so this also shows that no buffer was written twice.
    assert [bytes(frame) for frame in protocol.frames] == payloads
    assert not any(frame.readonly for frame in protocol.frames)


def test_a_frame_longer_than_the_trusted_length_arrives_whole() -> None:
    payload = random.Random(1).randbytes(9_000_000)
    protocol = Frames()
    deliver(protocol, framed(payload) + framed(b"next"), lambda: 1_000_000)
    assert protocol.frames == [payload, b"next"]


def test_length_is_not_allocated_before_the_bytes_come() -> None:
    tracemalloc.start()
    try:
        protocol = Frames()
        deliver(protocol, framed(b"first") + struct.pack(">i", 60_000_000) + b"x", lambda: 100)
        assert tracemalloc.get_traced_memory()[1] < 1_200_000
    finally:
        tracemalloc.stop()
    assert protocol.frames == [b"first"]


def test_the_buffer_of_a_large_frame_is_used_again_only_once_nothing_views_it() -> None:
    protocol = Frames(keeps_buffers=True)
    payloads = [random.Random(n).randbytes(1_000_000 + n) for n in range(4)]

    def receive(payload: bytes) -> tuple[memoryview, object]:
        deliver(protocol, framed(payload), lambda: 300_000)
        frame = protocol.frames.pop()
        assert frame == payload
        return frame, frame.obj

    first, first_buffer = receive(payloads[0])
    second, second_buffer = receive(payloads[1])
    part = first[500_000:]
    del first
    _, third_buffer = receive(payloads[2])
    assert part == payloads[0][500_000:]
    assert second == payloads[1]
    assert len({id(first_buffer), id(second_buffer), id(third_buffer)}) == 3
    del second
    _, fourth_buffer = receive(payloads[3])
    assert fourth_buffer in (second_buffer, third_buffer)


def test_the_buffer_of_a_large_frame_is_given_up_when_a_small_one_comes() -> None:
    protocol = Frames(keeps_buffers=True)
    deliver(protocol, framed(bytes(1_000_000)), lambda: 300_000)
    buffer = weakref.ref(protocol.frames.pop().obj)
    assert buffer() is not None
    deliver(protocol, framed(b"small") * 2, lambda: 300_000)
    assert buffer() is None


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 0x47455420])
def test_frame_that_is_too_long_or_negative_is_refused(length: int) -> None:
    protocol = Frames(max_frame_bytes=1000)
    sent = framed(bytes(1000)) + struct.pack(">i", length) + framed(b"not looked at")
    deliver(protocol, sent, lambda: 10_000)
    assert protocol.frames == [bytes(1000)]
    assert protocol.refused == [length]
    assert protocol.wire.closed


def test_no_frame_is_passed_on_after_the_connection_is_closed() -> None:
    class OneOnly(Frames):
        def frame_received(self, frame: memoryview) -> None:
            super().frame_received(frame)
            self.wire.close()

    protocol = OneOnly()
    deliver(protocol, framed(b"one") + framed(b"two"), lambda: 100)
    assert protocol.frames == [b"one"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_protocol_reads_on_a_real_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    rng = random.Random(7)
    payloads = [rng.randbytes(size) for size in (0, 5, 3_000_000, 100, 70_000)] + [b"end"]

    class UntilEnd(Frames):
        def __init__(self) -> None:
            super().__init__()
            self.done = loop.create_future()

        def frame_received(self, frame: memoryview) -> None:
            super().frame_received(frame)
            if bytes(frame) == b"end":
                self.done.set_result(None)

    async def exchange() -> list[memoryview]:
        ours, theirs = socket.socketpair()
        _, reader = await loop.create_connection(UntilEnd, sock=ours)
        writer, _ = await loop.create_connection(asyncio.Protocol, sock=theirs)
        writer.writelines([framed(payload) for payload in payloads])
        await asyncio.wait_for(reader.done, 10)
        writer.close()
        assert reader.transport is not None
        reader.transport.close()
        return reader.frames

    loop = new_loop()
    try:
        assert loop.run_until_complete(exchange()) == payloads
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
