"""The codecs: their framings, other writers' data, and data with wrong lengths."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys

import cramjam
import pytest

from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.compression import Compression, compress, decompress

CODECS = list(Compression)
REAL_CODECS = CODECS[1:]
LIMIT = 1 << 20
PAYLOADS = {
    "empty": b"",
    "one byte": b"x",
    "a flight": b'{"carrier":"UA","origin":"EWR","dep_delay":2}' * 40,
    "beyond a block": bytes(range(256)) * 1024,
    "without a pattern": os.urandom(100_000),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("level", [None, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_data_is_decompressed(
    codec: Compression, level: int | None, payload: bytes
) -> None:
    compressed = compress(codec, memoryview(payload), level)
    assert decompress(codec, memoryview(compressed), len(payload)) == payload


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_repetition_shrinks(codec: Compression) -> None:
    assert len(compress(codec, bytes(100_000))) < 6_000


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_more_than_allowed_is_refused(codec: Compression) -> None:
    compressed = compress(codec, b"x" * 1000)
    with pytest.raises(CorruptData, match=f"{codec.name.lower()} data holds more than the 999"):
        decompress(codec, compressed, 999)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_is_refused_before_it_goes_off(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 << 20))
    with pytest.raises(CorruptData, match="more than"):
        decompress(codec, bomb, 4096)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_no_truncation_goes_unnoticed(codec: Compression) -> None:
    payload = PAYLOADS["beyond a block"]
    compressed = compress(codec, payload)
    # A cut between two snappy blocks leaves whole blocks; the record count finds that one.
    for length in range(1, len(compressed), 97):
        try:
            found = decompress(codec, compressed[:length], LIMIT)
        except CorruptData:
            continue
        assert codec is Compression.SNAPPY
        assert payload.startswith(bytes(found))


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("garbage", [b"", b"\x01", b"garbage that no codec wrote", b"\xff" * 64])
def test_garbage_is_corrupt_data(codec: Compression, garbage: bytes) -> None:
    with pytest.raises(CorruptData, match=r"cannot be decompressed|more than"):
        decompress(codec, garbage, LIMIT)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(CorruptData, match=rf"codec {codec} is unknown.*zstd \(4\)"):
        decompress(codec, b"", LIMIT)
    with pytest.raises(UsageError, match=f"codec {codec} is unknown"):
        compress(codec, b"")


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Compression.GZIP, 0),
        (Compression.GZIP, 10),
        (Compression.LZ4, 0),
        (Compression.LZ4, 18),
        (Compression.ZSTD, 23),
    ],
)
@pytest.mark.kip(390)
def test_a_level_that_the_codec_lacks_is_refused(codec: Compression, level: int) -> None:
    with pytest.raises(UsageError, match=f"level {level} is out of range: use"):
        compress(codec, b"x", level)


def test_snappy_is_written_in_xerial_framing() -> None:
    compressed = compress(Compression.SNAPPY, bytes(40_000))
    assert compressed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (length,) = struct.unpack_from(">i", compressed, 16)
    assert cramjam.snappy.decompress_raw_len(compressed[20 : 20 + length]) == 32 * 1024


def test_a_raw_snappy_block_is_read() -> None:
    payload = PAYLOADS["a flight"]
    raw = bytes(cramjam.snappy.compress_raw(payload))
    assert decompress(Compression.SNAPPY, raw, LIMIT) == payload


@pytest.mark.parametrize(
    "tail", [b"\x00\x00", struct.pack(">i", 100) + b"short", struct.pack(">i", -1)]
)
def test_a_snappy_block_beyond_the_data_is_refused(tail: bytes) -> None:
    with pytest.raises(CorruptData, match=r"ends within|bytes, with"):
        decompress(Compression.SNAPPY, compress(Compression.SNAPPY, b"whole") + tail, LIMIT)


def test_a_snappy_block_cannot_declare_an_impossible_size() -> None:
    claims_a_megabyte = b"\x80\x80\x40" + b"\x00a"
    with pytest.raises(CorruptData, match="5 bytes declare to hold 1048576"):
        decompress(Compression.SNAPPY, claims_a_megabyte, LIMIT)


def test_lz4_is_written_in_independent_blocks_of_64_kib() -> None:
    compressed = compress(Compression.LZ4, bytes(100_000))
    magic, flags, block, _check = struct.unpack_from("<IBBB", compressed)
    assert magic == 0x184D2204
    assert flags == 0b01_1_0_0_0_00  # version 1, independent blocks, no checksums, no size
    assert block == 4 << 4
    assert bytes(cramjam.lz4.decompress(compressed)) == bytes(100_000)


def test_lz4_stores_incompressible_blocks() -> None:
    payload = os.urandom(70_000)
    compressed = compress(Compression.LZ4, payload)
    assert len(compressed) == len(payload) + 7 + 4 + 4 + 4
    assert decompress(Compression.LZ4, compressed, LIMIT) == payload


@pytest.mark.parametrize("module", ["lz4", "zstd", "gzip"])
def test_frames_of_others_are_read(module: str) -> None:
    payload = PAYLOADS["beyond a block"]
    frame = bytes(getattr(cramjam, module).compress(payload))
    assert decompress(Compression[module.upper()], frame, LIMIT) == payload


def test_gzip_members_in_a_row_are_one_stream() -> None:
    two = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(Compression.GZIP, two, 7) == b"one two"
    with pytest.raises(CorruptData, match="more than the 6"):
        decompress(Compression.GZIP, two, 6)
    with pytest.raises(CorruptData, match="cannot be decompressed"):
        decompress(Compression.GZIP, two + b"rest", LIMIT)


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_and_trimtab_read_each_other(name: str) -> None:
    codec = pytest.importorskip("aiokafka.codec")
    payload = PAYLOADS["beyond a block"]
    ours = compress(Compression[name.upper()], payload)
    assert bytes(getattr(codec, f"{name}_decode")(ours)) == payload
    theirs = bytes(getattr(codec, f"{name}_encode")(payload))
    assert decompress(Compression[name.upper()], theirs, LIMIT) == payload


def test_importing_loads_no_codec() -> None:
    program = "import sys, trimtab.kafka.wire.batch_cy; print('cramjam' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")
