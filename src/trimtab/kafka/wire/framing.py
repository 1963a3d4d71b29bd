"""Frames: a length, a header, a message. For both clients and brokers.

    frame    = length (int32, of the rest) header body
    request  = api key, api version, correlation id, client id [, tags] body
    response = correlation id [, tags] body

The headers have tags in the flexible versions of their message, with two exceptions that keep
ApiVersions readable without knowing the version: the client id is never compact, and the header of
an ApiVersions response never has tags.

Source: Kafka's `RequestHeader`, `ResponseHeader`, `ApiMessageType`, `NetworkReceive`; KIP-482, 511.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections.abc import Generator
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import (
    LARGE_RECORDS_BYTES,
    decode,
    decode_in_turns,
    encode_parts,
    encode_parts_in_turns,
)
from trimtab.kafka.wire.codec_source import skip_tags
from trimtab.kafka.wire.messages import APIS, APIS_BY_REQUEST, Api
from trimtab.kafka.wire.messages.api_versions import ApiVersionsResponse
from trimtab.kafka.wire.schema import Request, Schema, schema
from trimtab.kafka.wire.types import MAX_INT64, BytesLike
from trimtab.kafka.wire.varint import read_unsigned_varint

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The default of Kafka's `socket.request.max.bytes`."""

TRUSTED_BYTES = 1024 * 1024

M = TypeVar("M")

_length = struct.Struct(">i")
_request_start = struct.Struct(">hhih")
_request_prefix = struct.Struct(">ihhih")
_response_prefix = struct.Struct(">ii")
_flexible_response_prefix = struct.Struct(">iix")


class RequestHeader(NamedTuple):
    """The header of a request.

    Attributes:
        api_key: one of `APIS`.
        api_version: the client's; check it with `Api.serves` before decoding the body.
        correlation_id: returned in the response.
        client_id: None if the client gave none.
        body: the position in the frame where the body starts.
        peer_host: the address that the request came from, if known.
        received_s: when its node began to serve it, if that is measured.
        is_node: whether a node of this cluster sent it.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int
    peer_host: str = ""
    received_s: float = 0.0
    is_node: bool = False


def encode_request(
    message: Request[object],
    version: int,
    correlation_id: int,
    client_id: str | None,
    limit: int = MAX_INT64,
) -> list[BytesLike]:
    """A request as a whole frame, length included, in parts for `transport.writelines`.

    Raises:
        UsageError: the message cannot be encoded in `version`.
        Exceeded: its arrays have more than `limit` elements.
    """
    parts = encode_parts(message, version, limit)
    api = APIS_BY_REQUEST[type(message)]
    return frame_request(api, version, correlation_id, client_id, parts)


def frame_request(
    api: Api,
    version: int,
    correlation_id: int,
    client_id: str | None,
    parts: list[BytesLike],
) -> list[BytesLike]:
    """The whole frame of a request to this API, whose encoded body is `parts`."""
    client = b"" if client_id is None else client_id.encode()
    tags = b"\0" if version >= api.flexible_from else b""
    header_bytes = _request_start.size + len(client) + len(tags)
    prefix = _request_prefix.pack(
        header_bytes + sum(map(len, parts)),
        api.key,
        version,
        correlation_id,
        -1 if client_id is None else len(client),
    )
    return _prepend(prefix + client + tags, parts)


def encode_response(
    message: object, version: int, correlation_id: int, limit: int = MAX_INT64
) -> list[BytesLike]:
    """A response as a whole frame, length included, in parts for `transport.writelines`.

    Raises:
        UsageError: the message cannot be encoded in `version`.
        Exceeded: its arrays have more than `limit` elements.
    """
    parts = encode_parts(message, version, limit)
    return _frame_response(schema(type(message)), version, correlation_id, parts)


def encode_response_in_turns(
    message: object, version: int, correlation_id: int
) -> Generator[None, None, list[BytesLike]]:
    """As `encode_response`, but a generator that yields every millisecond.

    Raises:
        UsageError: the message cannot be encoded in `version`.
    """
    parts = yield from encode_parts_in_turns(message, version)
    return _frame_response(schema(type(message)), version, correlation_id, parts)


def _frame_response(
    kind: Schema, version: int, correlation_id: int, parts: list[BytesLike]
) -> list[BytesLike]:
    flexible = kind.flexible.includes(version) and kind.cls is not ApiVersionsResponse
    start = _flexible_response_prefix if flexible else _response_prefix
    length = start.size - LENGTH_BYTES + sum(map(len, parts))
    return _prepend(start.pack(length, correlation_id), parts)


def _prepend(prefix: bytes, parts: list[BytesLike]) -> list[BytesLike]:
    if len(parts[0]) <= LARGE_RECORDS_BYTES:
        parts[0] = prefix + parts[0]
    else:
        parts.insert(0, prefix)
    return parts


def decode_request_header(
    frame: BytesLike, peer_host: str = "", received_s: float = 0.0, is_node: bool = False
) -> RequestHeader:
    """The header of a request frame without its length prefix.

    A version that trimtab does not serve is no error here, because an ApiVersions request of any
    version has to be answered: with a body of version 0 and UNSUPPORTED_VERSION.

    Raises:
        CorruptData: no header, or an API that is not in `APIS`, whose header format is unknown.
            Close the connection, as Kafka does.
    """
    try:
        api_key, api_version, correlation_id, length = _request_start.unpack_from(frame)
        position = _request_start.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise CorruptData(f"request header: a client id of {length} bytes does not fit")
            client_id = str(frame[position:end], "utf-8")
            position = end
        elif length != -1:
            raise CorruptData(f"request header: a client id of length {length}")
        api = APIS.get(api_key)
        if api is None:
            raise CorruptData(f"request header: API {api_key} is not served")
        if api_version >= api.flexible_from:
            position = _skip_tags(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptData(f"request header in {len(frame)} bytes: {error}") from error
    return RequestHeader(
        api_key, api_version, correlation_id, client_id, position, peer_host, received_s, is_node
    )


def decode_correlation_id(frame: BytesLike) -> int:
    """The correlation id of a response, which identifies its request.

    Raises:
        CorruptData: the frame is too short to have one.
    """
    try:
        return cast(int, _length.unpack_from(frame)[0])
    except struct.error as error:
        raise CorruptData(f"response header in {len(frame)} bytes: {error}") from error


def decode_response(cls: type[M], version: int, frame: BytesLike, limit: int = MAX_INT64) -> M:
    """The response in a frame without its length prefix.

    An ApiVersionsResponse may also have version 0: a broker answers in it if it does not know the
    request's version (KIP-511).

    Raises:
        CorruptData: the frame does not contain such a response.
        UsageError: the class has no such version.
        Exceeded: it would take more than `limit` bytes of memory.
    """
    if cls is ApiVersionsResponse:
        try:
            return decode(cls, version, frame, _length.size)
        except CorruptData:
            return decode(cls, 0, frame, _length.size)
    return decode(cls, version, frame, _response_body(cls, version, frame), limit=limit)


def decode_response_in_turns(
    cls: type[M], version: int, frame: BytesLike
) -> Generator[None, None, M]:
    """As `decode_response`, of any size, but a generator that yields every millisecond. Not for
    ApiVersions.

    Raises:
        CorruptData: the frame does not contain such a response.
        UsageError: the class has no such version.
    """
    body = _response_body(cls, version, frame)
    return (yield from decode_in_turns(cls, version, frame, body, MAX_INT64))


def _response_body(cls: type, version: int, frame: BytesLike) -> int:
    """The position of a response's body in its frame."""
    position = _length.size
    if schema(cls).flexible.includes(version):
        try:
            position = _skip_tags(frame, position)
        except IndexError as error:
            raise CorruptData(f"response header in {len(frame)} bytes: {error}") from error
    return position


def _skip_tags(frame: BytesLike, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    return skip_tags(frame, position, len(frame), count)


class FrameProtocol(asyncio.BufferedProtocol):
    """Reads length-prefixed frames from one connection.

    Bytes are received into a staging buffer, and whole frames in it are passed on as views of it,
    without a copy; a longer frame gets its own buffer, into which its rest is received. A buffer is
    written once from start to end, so a frame's bytes do not change as long as a view of it exists.

    The staging buffer starts small and grows fourfold when one read fills it. A frame's length may
    be wrong: at first at most `trusted_bytes` are allocated for it, later four times the bytes
    received so far, or if that is more than `_MAPPED_BYTES` all. Buffers larger than that are
    mapped: they take memory only as bytes arrive, and no tens of megabytes are zeroed at once.

    Subclasses implement `frame_received`, may implement `frame_refused`, and must call `super()`
    when they extend `connection_made` or `connection_lost`. They pause and resume reading on the
    transport.

    Args:
        max_frame_bytes: a longer frame is refused, and the connection closed.
        trusted_bytes: bytes allocated because of a length alone. Raise it if the other side is
            trusted and frames have tens of megabytes: growing costs several times the reading.
        keeps_buffers: whether the last four buffers of large frames are kept, until a small frame
            comes, and used again once nothing views them: receiving into new memory costs twice.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        trusted_bytes: int = TRUSTED_BYTES,
        keeps_buffers: bool = False,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.trusted_bytes = trusted_bytes
        self._keeps_buffers = keeps_buffers
        self._kept: list[mmap.mmap] = []
        self.transport: asyncio.Transport | None = None
        self._staging_bytes = _FIRST_STAGING_BYTES
        self._view = memoryview(bytearray(_FIRST_STAGING_BYTES))
        self._start = 0  # of the first frame that was not passed on
        self._end = 0  # of the received bytes

    def frame_received(self, frame: memoryview) -> None:
        """Called with each frame, without its length prefix: a writable view, which may be kept."""
        raise NotImplementedError

    def frame_refused(self, length: int) -> None:
        """Called before the connection is closed because of a frame with this negative or too large
        length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        capacity = len(self._view)
        if count == capacity - self._end:
            self._staging_bytes = min(self._staging_bytes * 4, _MAX_STAGING_BYTES)
        end = self._end = self._end + count
        view, start = self._view, self._start
        needed = LENGTH_BYTES
        while end - start >= LENGTH_BYTES:
            (length,) = _length.unpack_from(view, start)
            if not 0 <= length <= self.max_frame_bytes:
                self._refuse(length)
                return
            needed = LENGTH_BYTES + length
            if end - start < needed:
                break
            frame = view[start + LENGTH_BYTES : start + needed]
            start = self._start = start + needed
            needed = LENGTH_BYTES
            self.frame_received(frame)
            if self.transport is None or self.transport.is_closing():
                self._begin(_FIRST_STAGING_BYTES, b"")
                return
        self._make_room(capacity, start, end, needed)

    def _make_room(self, capacity: int, start: int, end: int, needed: int) -> None:
        """Get a buffer with room for the next read, for the frame of `needed` bytes at `start`."""
        received = end - start
        if not received:
            if capacity <= _MAX_STAGING_BYTES:
                self._kept.clear()
            if capacity - end < capacity // 4:
                self._begin(self._staging_bytes, b"")
        elif start + needed > capacity and (start or end == capacity):
            size = max(self._staging_bytes, min(needed, max(self.trusted_bytes, received * 4)))
            if received * 4 > _MAPPED_BYTES:
                size = needed
            self._begin(size, self._view[start:end])

    def _begin(self, size: int, received: BytesLike) -> None:
        """Continue in a new buffer of `size` bytes, which starts with the `received` bytes."""
        self._view = memoryview(self._make_buffer(size))
        self._view[: len(received)] = received
        self._start = 0
        self._end = len(received)

    def _make_buffer(self, size: int) -> bytearray | mmap.mmap:
        if size > _KEPT_BYTES and self._keeps_buffers:
            for kept in self._kept:
                if size <= len(kept) <= 2 * size and not _is_viewed(kept):
                    return kept
            made = _map(-(-size // _KEPT_BYTES) * _KEPT_BYTES)  # for slightly larger frames, too
            self._kept = [*self._kept[-3:], made]
            return made
        return _map(size) if size > _MAPPED_BYTES else bytearray(size)

    def _refuse(self, length: int) -> None:
        self.frame_refused(length)
        self._begin(_FIRST_STAGING_BYTES, b"")
        if self.transport is not None:
            self.transport.close()


_FIRST_STAGING_BYTES = 8 * 1024
_MAX_STAGING_BYTES = 128 * 1024
_MAPPED_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 512 * 1024


def _map(size: int) -> mmap.mmap:
    """Memory that is taken as it is written; in large pages, where the kernel has them.

    It is private: each new page of shared memory, the default, costs twice the time.
    """
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages: the memory is the same
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _is_viewed(mapped: mmap.mmap) -> bool:
    """Whether views of this memory exist: it could not be resized then."""
    try:
        mapped.resize(len(mapped))
    except (BufferError, SystemError):  # the latter where memory cannot be resized at all
        return True
    return False
