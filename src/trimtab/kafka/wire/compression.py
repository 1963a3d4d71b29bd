"""The compression codecs of record batches, in the framings that every Kafka client reads.

    gzip    written as one gzip member (RFC 1952); several in a row are read
    snappy  written in the framing of xerial's snappy-java: `82 SNAPPY 00`, version 1, compatible 1,
            then blocks of at most 32 KiB, each led by its length in four bytes; read in that
            framing and as one raw block, as librdkafka and the clients in Go write it
    lz4     written as one LZ4 frame of independent blocks of at most 64 KiB, as Java writes it
            (Java's reader refuses blocks that depend on each other); every LZ4 frame is read
    zstd    written as one Zstandard frame (KIP-110); several in a row are read

The libraries are imported when a codec is first used: a broker mostly stores batches as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from trimtab.kafka.errors import CorruptData, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Decoder: TypeAlias = Callable[[Buffer, bytearray], int]


class Compression(IntEnum):
    """The codec of a batch: the lowest three bits of its attributes (`compression.type`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing.

    `level` is on the codec's own scale (KIP-390): gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22;
    None takes the codec's default, and snappy has no levels. Raises UsageError for a level that
    the codec does not know.
    """
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return _compress_gzip(data, level)
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            return _compress_lz4(data, level)
        case Compression.ZSTD:
            return _compress_zstd(data, level)
    raise UsageError(f"compression codec {codec} is unknown: use one of {_KNOWN}")


def decompress(codec: int, data: Buffer, limit: int) -> bytes | bytearray:
    """The decompressed data, at most `limit` bytes.

    Never allocates more than `limit` bytes for the result, whatever size the data declares. Raises
    CorruptData for an unknown codec, for malformed data, and for a result above `limit`.
    """
    match codec:
        case Compression.NONE:
            return _within(bytes(data), limit)
        case Compression.GZIP:
            return _decompress_gzip(data, limit)
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        case Compression.LZ4:
            from cramjam import lz4

            return _decompress_growing("lz4", lz4.decompress_into, data, limit)
        case Compression.ZSTD:
            from cramjam import zstd

            return _decompress_growing("zstd", zstd.decompress_into, data, limit)
    raise CorruptData(f"compression codec {codec} is unknown: a batch has one of {_KNOWN}")


_KNOWN = ", ".join(f"{codec.name.lower()} ({codec.value})" for codec in Compression)


def _within(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _too_large("none", limit)
    return data


class TooLarge(CorruptData):
    """The decompressed data would exceed the limit."""


def _too_large(codec: str, limit: int) -> TooLarge:
    return TooLarge(f"{codec} data holds more than the {limit} bytes allowed for one batch")


# --- gzip: the standard library bounds its output itself ---------------------------------------

_GZIP_FRAMING = 31  # zlib's wbits: a 32 KiB window in gzip's framing


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    import zlib

    if level is not None and not 1 <= level <= 9:
        raise UsageError(f"gzip level {level} is out of range: use 1 to 9")
    compressor = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, _GZIP_FRAMING)
    return compressor.compress(data) + compressor.flush()


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    import zlib

    members: list[bytes] = []
    size = 0
    rest: Buffer = data
    while True:
        decompressor = zlib.decompressobj(_GZIP_FRAMING)
        try:
            member = decompressor.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise CorruptData(f"gzip data cannot be decompressed: {error}") from error
        size += len(member)
        if size > limit:
            raise _too_large("gzip", limit)
        if not decompressor.eof:
            raise CorruptData("gzip data cannot be decompressed: it ends in the middle of a stream")
        members.append(member)
        rest = decompressor.unused_data
        if not rest:
            return members[0] if len(members) == 1 else b"".join(members)


# --- snappy ------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">I")
# A copy element takes three bytes for at most 64 bytes of output; a larger declared size is wrong.
_SNAPPY_EXPANSION = 64


def _compress_snappy(data: Buffer) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += _BLOCK_LENGTH.pack(len(block)), block
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes | bytearray:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit, 0)
    whole = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        if start > len(data):
            raise CorruptData("snappy data cannot be decompressed: it ends within a block's length")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position = start + length
        if position > len(data):
            raise CorruptData(
                f"snappy data cannot be decompressed: a block of {length} bytes, "
                f"with {len(data) - start} left"
            )
        whole += _decompress_snappy_block(data[start:position], limit, len(whole))
    return whole


def _decompress_snappy_block(block: memoryview, limit: int, used: int) -> bytearray:
    from cramjam import DecompressionError, snappy

    try:
        size = snappy.decompress_raw_len(block)
        if size > limit - used:
            raise _too_large("snappy", limit)
        if size > _SNAPPY_EXPANSION * len(block):
            raise CorruptData(
                f"snappy data cannot be decompressed: {len(block)} bytes declare to hold {size}"
            )
        whole = bytearray(size)
        written = snappy.decompress_raw_into(block, whole)
    except DecompressionError as error:
        raise CorruptData(f"snappy data cannot be decompressed: {error}") from error
    if written != size:
        raise CorruptData(f"snappy data cannot be decompressed: {written} bytes instead of {size}")
    return whole


# --- lz4 ---------------------------------------------------------------------------------------

# Magic; version 1 with independent blocks (0x60); blocks of at most 64 KiB (0x40); the second byte
# of the xxHash-32 of these two. cramjam's own frames link their blocks, which Java refuses.
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_BLOCK_LENGTH = struct.Struct("<I")
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    from cramjam import lz4

    if level is not None and not 1 <= level <= 17:
        raise UsageError(f"lz4 level {level} is out of range: use 1 to 17")
    view = memoryview(data)
    parts = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        raw = view[start : start + _LZ4_BLOCK_BYTES]
        if level is None:
            block = bytes(lz4.compress_block(raw, store_size=False))
        else:
            block = bytes(
                lz4.compress_block(
                    raw, mode="high_compression", compression=level, store_size=False
                )
            )
        if len(block) < len(raw):
            parts += _LZ4_BLOCK_LENGTH.pack(len(block)), block
        else:
            parts += _LZ4_BLOCK_LENGTH.pack(len(raw) | _LZ4_STORED), bytes(raw)
    parts.append(_LZ4_END)
    return b"".join(parts)


# --- zstd, and reading of lz4 --------------------------------------------------------------------


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    from cramjam import zstd

    if level is not None and not -131072 <= level <= 22:
        raise UsageError(f"zstd level {level} is out of range: use -131072 to 22")
    return bytes(zstd.compress(data, level=level))


_OUTPUT_FULL = "failed to write whole buffer"


def _decompress_growing(name: str, decode: Decoder, data: Buffer, limit: int) -> bytearray:
    """Decompress into growing buffers until one suffices: a frame need not contain its size."""
    from cramjam import DecompressionError

    capacity = min(8 * memoryview(data).nbytes + 1024, limit)
    while True:
        whole = bytearray(capacity)
        try:
            del whole[decode(data, whole) :]
        except DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptData(f"{name} data cannot be decompressed: {error}") from error
            if capacity == limit:
                raise _too_large(name, limit) from error
            capacity = min(4 * capacity, limit)
        else:
            return whole
