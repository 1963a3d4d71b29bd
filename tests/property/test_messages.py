"""Every message in every version is decoded as it was encoded; arbitrary bytes break no decoder.

The messages are those of `APIS`, among them those of
`trimtab.kafka.wire.messages.allocate_producer_ids`, `trimtab.kafka.wire.messages.alter_configs`,
`trimtab.kafka.wire.messages.alter_partition`,
`trimtab.kafka.wire.messages.alter_partition_reassignments`,
`trimtab.kafka.wire.messages.alter_replica_log_dirs`,
`trimtab.kafka.wire.messages.broker_heartbeat`, `trimtab.kafka.wire.messages.broker_registration`,
`trimtab.kafka.wire.messages.create_acls`, `trimtab.kafka.wire.messages.create_partitions`,
`trimtab.kafka.wire.messages.delete_acls`, `trimtab.kafka.wire.messages.delete_records`,
`trimtab.kafka.wire.messages.describe_acls`, `trimtab.kafka.wire.messages.describe_log_dirs`,
`trimtab.kafka.wire.messages.describe_producers`, `trimtab.kafka.wire.messages.describe_quorum`,
`trimtab.kafka.wire.messages.describe_topic_partitions`,
`trimtab.kafka.wire.messages.elect_leaders`, `trimtab.kafka.wire.messages.fetch_snapshot`,
`trimtab.kafka.wire.messages.incremental_alter_configs`,
`trimtab.kafka.wire.messages.list_config_resources`,
`trimtab.kafka.wire.messages.list_partition_reassignments`,
`trimtab.kafka.wire.messages.offset_for_leader_epoch`,
`trimtab.kafka.wire.messages.unregister_broker`.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.steps import finish
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import (
    decode,
    decode_in_turns,
    encode,
    encode_parts,
    encode_parts_in_turns,
)
from trimtab.kafka.wire.messages import APIS
from trimtab.kafka.wire.messages.control_records import (
    CONTROL_RECORDS,
    decode_control_record,
    encode_control_key,
    encode_control_record,
)
from trimtab.kafka.wire.messages.metadata_records import RECORDS, decode_record, encode_record
from trimtab.kafka.wire.schema import Field, Schema, schema
from trimtab.kafka.wire.types import WireType

MESSAGES: list[type] = [
    *(cls for api in APIS.values() for cls in (api.request, api.response)),
    *RECORDS.values(),
    *CONTROL_RECORDS.values(),
]
CASES = [
    (cls, version)
    for cls in MESSAGES
    for version in range(schema(cls).versions.low, schema(cls).versions.high + 1)
]
case = pytest.mark.parametrize(
    ("cls", "version"), CASES, ids=[f"{cls.__name__}-v{version}" for cls, version in CASES]
)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    # Lengths below and above the largest in one byte of a compact length.
    "string": st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["x" * 126, "ä" * 64]),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8) | st.sampled_from([bytes(127), bytes(2000)]),
}


def primitive(kind: WireType) -> st.SearchStrategy[Any]:
    if kind.name in PRIMITIVES:
        return PRIMITIVES[kind.name]
    bits = kind.size * 8
    if kind.code.isupper():
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def field_values(declared: Field, version: int) -> st.SearchStrategy[Any]:
    kind = declared.type
    values = instances(kind, version) if isinstance(kind, Schema) else primitive(kind)
    if declared.is_array:
        values = st.lists(values, max_size=3)
    if declared.nullable_versions.includes(version):
        values = st.none() | values
    return values


def instances(kind: Schema, version: int) -> st.SearchStrategy[Any]:
    """Instances with values in the fields of `version`, generated from the declaration."""
    carried = [each for each in kind.fields if each.versions.includes(version)]
    return st.builds(kind.cls, **{each.name: field_values(each, version) for each in carried})


@cache
def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    return instances(schema(cls), version)


@case
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_message_round_trips(cls: type, version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(cls, version))
    body = encode(sent, version)
    assert decode(cls, version, body) == sent
    assert b"".join(encode_parts(sent, version)) == body
    assert b"".join(finish(encode_parts_in_turns(sent, version))) == body
    assert finish(decode_in_turns(cls, version, body)) == sent
    if cls in RECORDS.values():
        assert decode_record(encode_record(sent, version)) == sent
    if cls in CONTROL_RECORDS.values() and version == 0:
        assert decode_control_record(*encode_control_record(sent)) == sent


@case
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_bytes_decode_or_are_corrupt(
    cls: type, version: int, data: st.DataObject, seed: int
) -> None:
    """Arbitrary bytes, and messages with bytes changed, removed, inserted, or truncated."""
    body = encode(data.draw(messages(cls, version)), version)
    rng = random.Random(seed)
    for mutated in [rng.randbytes(rng.randrange(64)), *(mutate(body, rng) for _ in range(20))]:
        try:
            received: Any = decode(cls, version, mutated)
        except CorruptData:
            if not is_longer(cls, version, mutated):
                with pytest.raises(CorruptData):
                    finish(decode_in_turns(cls, version, mutated))
            continue
        assert finish(decode_in_turns(cls, version, mutated)) == received
        # A decoded message is valid: it can be encoded again, and is decoded to the same.
        assert decode(cls, version, encode(received, version)) == received


def is_longer(cls: type, version: int, body: bytes) -> bool:
    """Whether these bytes are a message followed by further bytes."""
    try:
        decode(cls, version, body, allow_rest=True)
    except CorruptData:
        return False
    return True


def mutate(body: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(mutated) + 1)
        change = rng.randrange(4)
        if change == 0 and at < len(mutated):
            mutated[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif change == 1:
            del mutated[at : at + rng.randint(1, 4)]
        elif change == 2:
            mutated[at:at] = rng.randbytes(rng.randint(1, 4))
        else:
            del mutated[at:]
    return bytes(mutated)


@pytest.mark.parametrize(
    "prefix", [b"", b"\x01", b"\x01\x03\x02"], ids=["none", "frame", "partition"]
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(rest=st.binary(max_size=64))
def test_bytes_are_a_metadata_record_or_corrupt(prefix: bytes, rest: bytes) -> None:
    try:
        record = decode_record(prefix + rest)
    except CorruptData:
        return
    assert type(record) in RECORDS.values()


@pytest.mark.parametrize("kind", [*CONTROL_RECORDS, -1, 0, 7, None])
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(key=st.none() | st.binary(max_size=5), value=st.none() | st.binary(max_size=64))
def test_bytes_are_a_control_record_or_corrupt(
    kind: int | None, key: bytes | None, value: bytes | None
) -> None:
    try:
        record = decode_control_record(key if kind is None else encode_control_key(kind), value)
    except CorruptData:
        return
    assert type(record) in CONTROL_RECORDS.values()
