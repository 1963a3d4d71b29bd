"""The codec against bytes written by hand, and its rules for declarations and values.

Long because each type is written, read and refused beside the others.
"""

from __future__ import annotations

import linecache
import tracemalloc
from typing import Any

import pytest

from tests.steps import count_steps
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.codec import (
    AT_ONCE_BYTES,
    AT_ONCE_ELEMENTS,
    LARGE_RECORDS_BYTES,
    Exceeded,
    decode,
    decode_in_turns,
    encode,
    encode_parts,
    encode_parts_in_turns,
)
from trimtab.kafka.wire.codec_source import MAX_TAGS, TURN_ELEMENTS
from trimtab.kafka.wire.messages import (
    ApiVersionsRequest,
    DeleteTopicsRequest,
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from trimtab.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicState
from trimtab.kafka.wire.messages.describe_producers import TopicRequest
from trimtab.kafka.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trimtab.kafka.wire.messages.metadata_records import (
    PartitionChangeRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from trimtab.kafka.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.types import (
    ZERO_UUID,
    binary,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uint32,
    uuid,
)
from trimtab.kafka.wire.varint import read_unsigned_varint, write_unsigned_varint

TOPIC_ID = bytes(range(16))


def produce_request(*, name: str = "t", topic_id: bytes = ZERO_UUID) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=topic_id,
                partition_data=[
                    PartitionProduceData(index=2, records=b"abc"),
                    PartitionProduceData(index=3, records=None),
                ],
            )
        ],
    )


GOLDEN: list[tuple[object, int, str]] = [
    (ApiVersionsRequest(), 0, ""),
    (
        ApiVersionsRequest(client_software_name="py", client_software_version="1"),
        3,
        "03 7079  02 31  00",
    ),
    (
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)], error_code=35
        ),
        0,
        "0023  00000001  0012 0000 0004",
    ),
    (
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
            finalized_features_epoch=7,
            zk_migration_ready=True,
        ),
        3,
        # The tagged fields: two of them, the epoch (tag 1, 8 bytes) and a flag (tag 3, 1 byte).
        "0000  02  0012 0000 0004 00  00000000  02  01 08 0000000000000007  03 01 01",
    ),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 1, "00000001 0001 74"),
    (
        MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=TOPIC_ID)]),
        12,
        "02  000102030405060708090a0b0c0d0e0f 00 00  01 00 00",
    ),
    (
        MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=1, host="h", port=9092, rack="a"),
                MetadataResponseBroker(node_id=2, host="h", port=9093),
            ],
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name="t",
                    partitions=[
                        MetadataResponsePartition(
                            error_code=5,
                            partition_index=0,
                            leader_id=-1,
                            replica_nodes=[1, 2],
                            isr_nodes=[],
                        )
                    ],
                )
            ],
        ),
        1,
        "00000002"
        " 00000001 0001 68 00002384 0001 61"
        " 00000002 0001 68 00002385 ffff"
        " 00000001"
        " 00000001  0000 0001 74 00"
        " 00000001  0005 00000000 ffffffff  00000002 00000001 00000002  00000000",
    ),
    (
        produce_request(),
        3,
        "ffff ffff 000005dc  00000001  0001 74  00000002"
        " 00000002 00000003 616263  00000003 ffffffff",
    ),
    (
        produce_request(),
        9,
        "00 ffff 000005dc  02  02 74  03  00000002 04 616263 00  00000003 00 00  00  00",
    ),
    (
        produce_request(name="", topic_id=TOPIC_ID),
        13,
        "00 ffff 000005dc  02  000102030405060708090a0b0c0d0e0f  03"
        " 00000002 04 616263 00  00000003 00 00  00  00",
    ),
    (
        ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name="t",
                    partition_responses=[
                        PartitionProduceResponse(
                            index=0,
                            error_code=6,
                            base_offset=-1,
                            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
                        )
                    ],
                )
            ]
        ),
        10,
        "02  02 74  02"
        " 00000000 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff 01 00"
        " 01 00 09 00000002 00000009 00"
        " 00  00000000 00",
    ),
    (
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=3, isr=[3]),
        0,
        "00000001 000102030405060708090a0b0c0d0e0f  02  00 05 02 00000003  01 04 00000003",
    ),
    (
        PartitionChangeRecord(topic_id=ZERO_UUID, directories=[], eligible_leader_replicas=[]),
        2,
        # Declared the other way round: on the wire, tags rise.
        "ffffffff 00000000000000000000000000000000  02  06 01 01  08 01 01",
    ),
]


@pytest.mark.parametrize(
    ("sent", "version", "expected"),
    GOLDEN,
    ids=[f"{type(sent).__name__}-v{version}-{i}" for i, (sent, version, _) in enumerate(GOLDEN)],
)
def test_message_has_the_bytes_of_the_protocol(sent: object, version: int, expected: str) -> None:
    assert encode(sent, version).hex() == bytes.fromhex(expected).hex()
    assert decode(type(sent), version, bytes.fromhex(expected)) == sent


def test_metadata_record_is_framed_by_kind_and_version() -> None:
    record = TopicRecord(name="t", topic_id=TOPIC_ID)
    framed = bytes.fromhex("01 02 00  02 74") + TOPIC_ID + b"\0"
    assert encode_record(record) == framed
    assert decode_record(framed) == record


@pytest.mark.parametrize(
    "framed",
    [b"", b"\x01", b"\x01\x02", b"\x00\x02\x00", b"\x01\x63\x00", b"\x01\x02\x01", b"\x01\x02\x00"],
    ids=["empty", "cut", "cut again", "frame version", "kind", "version", "no body"],
)
def test_metadata_record_that_is_none_is_corrupt(framed: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_record(framed)


@struct()
class Inner:
    """A struct that can be null."""

    number: int64
    words: list[string]


@message(api_key=900, versions="0-2", flexible="1+")
class Everything:
    """A message with a field of every type."""

    small: int8 = 0
    unsigned: uint16 = 0
    large_unsigned: uint32 = 0
    real: float64 = 0.0
    flag: bool = False
    identity: uuid = ZERO_UUID
    data: binary | None = field(nullable_versions="0+", default=None)
    inner: Inner | None = field(nullable_versions="0+", default=None)
    shorts: list[int16] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    identities: list[uuid] | None = field(nullable_versions="0+", default=None)
    late: int32 = field(versions="2+", default=-1)
    late_and_ignorable: string = field(versions="2+", default="", ignorable=True)
    tagged: Inner | None = field(
        versions="1+", nullable_versions="1+", tag=0, tagged_versions="1+", default=None
    )


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "small": -128,
        "unsigned": 65535,
        "large_unsigned": 2**32 - 1,
        "real": -0.5,
        "flag": True,
        "identity": TOPIC_ID,
        "data": b"\0\1",
        "inner": Inner(number=-(2**63), words=["ä", ""]),
        "shorts": [-1, 2],
        "flags": [True, False],
        "identities": [TOPIC_ID],
    }
    return Everything(**(values | changes))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_type_round_trips(version: int) -> None:
    for sent in (everything(), Everything(), everything(inner=None)):
        assert decode(Everything, version, encode(sent, version)) == sent


def test_every_type_has_its_bytes() -> None:
    assert (
        encode(everything(), 0).hex()
        == (
            bytes.fromhex("80 ffff ffffffff bfe0000000000000 01")
            + TOPIC_ID
            + bytes.fromhex("00000002 0001  01 8000000000000000 00000002 0002 c3a4 0000")
            + bytes.fromhex("00000002 ffff 0002  00000002 01 00  00000001")
            + TOPIC_ID
        ).hex()
    )


def test_tagged_struct_that_can_be_null_round_trips() -> None:
    sent = everything(tagged=Inner(number=1, words=["x" * 200]))
    assert decode(Everything, 1, encode(sent, 1)) == sent


def test_value_that_the_version_lacks_is_refused_unless_ignorable() -> None:
    assert decode(Everything, 1, encode(everything(late_and_ignorable="x"), 1)) == everything()
    with pytest.raises(UsageError, match=r"Everything v1: late = 5: the version lacks it"):
        encode(everything(late=5), 1)
    with pytest.raises(UsageError, match=r"tagged = Inner\(number=1, words=\[\]\)"):
        encode(everything(tagged=Inner(number=1, words=[])), 0)
    with pytest.raises(UsageError, match=r"DeleteTopicsRequest v5: topics = .*leave it at its"):
        encode(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1), 5)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"small": 128}, "small: 128 is outside -128 to 127"),
        ({"unsigned": -1}, "unsigned: -1 is outside 0 to 65535"),
        ({"large_unsigned": "7"}, "large_unsigned: '7' is no integer"),
        ({"real": "x"}, "real: 'x' is no float64"),
        ({"identity": b"short"}, "identity: b'short' is not 16 bytes"),
        ({"data": "text"}, "data: 'text' is not bytes-like"),
        ({"shorts": None}, "shorts: it is None"),
        ({"shorts": [1, 70000]}, "shorts: 70000 is outside -32768 to 32767"),
        ({"identities": [b""]}, "identities: b'' is not 16 bytes"),
        ({"inner": 5}, "inner: 5 is no Inner"),
        ({"inner": Inner(number=1, words=["a", None])}, r"inner.words: None is no str"),  # type: ignore[list-item]
        ({"inner": Inner(number=1, words=["\ud800"])}, "inner.words: .* lone surrogate"),
        ({"inner": Inner(number=1, words=["x" * 32768])}, "inner.words: a string of 32768 bytes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("version", [0, 2])
def test_value_that_does_not_fit_is_named(
    version: int, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UsageError, match=f"Everything v{version}: {fault}"):
        encode(everything(**changes), version)


def test_fault_names_its_place_in_arrays() -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(name="a", partitions=[]),
            ListOffsetsTopic(
                name="b", partitions=[ListOffsetsPartition(partition_index=2**31, timestamp=-1)]
            ),
        ],
    )
    with pytest.raises(
        UsageError, match=r"v7: topics\[1\]\.partitions\[0\]\.partition_index: 2147"
    ):
        encode(request, 7)


def test_null_is_refused_in_a_version_that_cannot_carry_it() -> None:
    with pytest.raises(UsageError, match=r"MetadataRequest v0: topics: it is None"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(CorruptData, match=r"MetadataRequest\.topics has the length -1"):
        decode(MetadataRequest, 0, bytes.fromhex("ffffffff"))


def test_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="ProduceRequest has no version 2, only 3-13"):
        encode(produce_request(), 2)
    with pytest.raises(UsageError, match="FetchRequest has no version 19"):
        decode(FetchRequest, 19, b"")


def test_class_that_is_no_message_is_refused() -> None:
    with pytest.raises(UsageError, match="int is no message"):
        encode(5, 0)


def fetch_response(*batches: Any) -> FetchResponse:
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(partition_index=i, high_watermark=9, records=batch)
                    for i, batch in enumerate(batches)
                ],
            )
        ]
    )


@pytest.mark.parametrize("version", [4, 12])
def test_large_records_are_parts_of_their_own(version: int) -> None:
    large, larger, small = bytes(LARGE_RECORDS_BYTES + 1), bytearray(5000), b"small"
    sent = fetch_response(large, small, None, larger)
    parts = encode_parts(sent, version)
    assert [id(part) for part in parts if len(part) > LARGE_RECORDS_BYTES] == [
        id(large),
        id(larger),
    ]
    assert b"".join(parts) == encode(sent, version)
    assert encode_parts(fetch_response(small), version) == [encode(fetch_response(small), version)]


def test_records_decode_to_views_of_the_frame() -> None:
    frame = bytearray(b"head" + encode(produce_request(), 9))
    received = decode(ProduceRequest, 9, frame, 4)
    view = received.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    view[0] = ord("X")
    assert b"Xbc" in frame


def test_unknown_tagged_fields_are_skipped() -> None:
    body = bytes.fromhex("02 61 02 62  02  7f 03 010203  05 00")
    expected = ApiVersionsRequest(client_software_name="a", client_software_version="b")
    assert decode(ApiVersionsRequest, 3, body) == expected


@pytest.mark.parametrize(
    ("cls", "version", "body", "fault"),
    [
        (ApiVersionsRequest, 0, "00", "1 bytes too many"),
        (ApiVersionsRequest, 3, "", "of 0 bytes"),
        (ApiVersionsRequest, 3, "00 02 61 00", "client_software_name has the length -1"),
        (ApiVersionsRequest, 3, "09 61", "client_software_name has the length 8"),
        (ApiVersionsRequest, 3, "818002" + "61" * 32768 + "01 00", "name has the length 32768"),
        (ApiVersionsRequest, 3, "02 ff 02 61 00", "codec can't decode"),
        (ApiVersionsRequest, 3, "ffffffffff01 00 00", "more than 32 bits"),
        (ApiVersionsRequest, 3, "ffffffff7f 00 00", "more than 32 bits"),
        (ApiVersionsRequest, 3, "01 01 01 05 02 00", "unknown tagged field has the length 2"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 01 07 0000000000000000", "epoch has the len"),
        (MetadataRequest, 1, "7fffffff", "topics has the length 2147483647"),
        (MetadataRequest, 1, "fffffffe", "topics has the length -2"),
        (MetadataRequest, 1, "00000001 fffe 74", "name has the length -2"),
        (MetadataRequest, 9, "ffffffff0f 01 01 00", "topics has the length 4294967294"),
        (Everything, 0, "00" * 32 + "ffffffff 05", "Everything.inner has the length 5"),
    ],
)
def test_bytes_that_are_no_message_are_corrupt(
    cls: type, version: int, body: str, fault: str
) -> None:
    with pytest.raises(CorruptData, match=fault):
        decode(cls, version, bytes.fromhex(body))


def test_count_cannot_make_us_allocate() -> None:
    hostile = bytes.fromhex("00 ffff 000005dc  ffffffff07") + bytes(1000)
    with pytest.raises(CorruptData):
        decode(ProduceRequest, 9, hostile)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match="topic_data has the length 2147483646"):
            decode(ProduceRequest, 9, hostile)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_varint_has_its_bytes(value: int, expected: str) -> None:
    assert write_unsigned_varint(value).hex() == expected
    assert read_unsigned_varint(b"x" + bytes.fromhex(expected), 1) == (
        value,
        1 + len(expected) // 2,
    )


def test_generated_source_is_shown_in_tracebacks() -> None:
    encode(Everything(), 2)
    assert linecache.getline("<trimtab encode_Everything_v2>", 1).startswith(
        "def encode_Everything_v2("
    )


def test_messages_compare_by_value_and_their_repr_has_the_set_fields() -> None:
    assert Inner(number=1, words=[]) == Inner(number=1, words=[])
    assert Inner(number=1, words=[]) != Inner(number=2, words=[])
    assert Inner(number=1, words=[]) != Everything()  # type: ignore[comparison-overlap]
    assert repr(everything(inner=None)).startswith("Everything(small=-128, unsigned=65535,")
    assert repr(ApiVersionsRequest(client_software_name="a")) == (
        "ApiVersionsRequest(client_software_name='a')"
    )


def test_defaults_are_not_shared() -> None:
    first = decode(ProduceResponse, 9, encode(ProduceResponse(responses=[]), 9))
    first.node_endpoints.append(None)  # type: ignore[arg-type]
    second = decode(ProduceResponse, 9, encode(ProduceResponse(responses=[]), 9))
    assert second.node_endpoints == []
    assert ProduceResponse(responses=[]).node_endpoints == []


BAD_DECLARATIONS: dict[str, tuple[str, str]] = {
    "range": ('a: int32 = field(versions="3-1", default=0)', "'3-1' is not a range of versions"),
    "word": ('a: int32 = field(versions="new", default=0)', "'new' is not a range"),
    "type": ("a: int", "is no wire type"),
    "two types": ("a: int32 | string", "is no wire type"),
    "null": ("a: string | None", "nullable_versions go together"),
    "not null": ('a: string = field(nullable_versions="0+")', "nullable_versions go together"),
    "tag": ("a: int32 = field(tag=0, default=0)", "tagged_versions go together"),
    "tag without default": ('a: int32 = field(tag=0, tagged_versions="2+")', "has a default"),
    "tag gap": ('a: int32 = field(tag=1, tagged_versions="2+", default=0)', "tags must count"),
    "tag not flexible": (
        'a: int32 = field(tag=0, tagged_versions="1+", default=0)',
        "not flexible",
    ),
    "tag outside": (
        'a: int32 = field(versions="3", tag=0, tagged_versions="2+", default=0)',
        "tagged in versions that lack it: 2+",
    ),
    "null default": (
        'a: string | None = field(nullable_versions="2+", default=None)',
        "null by default, but not nullable in 0+",
    ),
    "default too large": ("a: int8 = 128", "the default does not fit: 128 is outside"),
    "default of another type": ("a: string = b''", "the default does not fit: b'' is no str"),
    "never there": ('a: int32 = field(versions="4+", default=0)', "no version of Bad has it"),
    "late without default": ('a: int32 = field(versions="2+")', "needs a default"),
}


@pytest.mark.parametrize("name", BAD_DECLARATIONS)
def test_declaration_that_breaks_a_rule_is_refused(name: str) -> None:
    line, fault = BAD_DECLARATIONS[name]
    source = f'@message(api_key=1, versions="0-3", flexible="2+")\nclass Bad:\n    {line}\n'
    with pytest.raises(UsageError, match=fault):
        exec(source, globals())


def test_schema_has_the_declaration() -> None:
    kind = schema(ProduceRequest)
    assert (kind.name, kind.api_key, str(kind.versions), str(kind.flexible)) == (
        "ProduceRequest",
        0,
        "3-13",
        "9+",
    )
    topic = kind.fields[3].type
    assert [each.name for each in topic.fields] == ["name", "topic_id", "partition_data"]  # type: ignore[union-attr]
    assert str(topic.fields[0].versions) == "0-12"  # type: ignore[union-attr]


# -- the largest of messages, in turns


def metadata_body(names: int, version: int = 1) -> bytes:
    return encode(
        MetadataRequest(topics=[MetadataRequestTopic(name=f"{n:06}") for n in range(names)]),
        version,
    )


@pytest.mark.parametrize("version", [1, 12])
def test_a_large_request_is_not_read_at_once(version: int) -> None:
    body = metadata_body(10_000, version)
    with pytest.raises(Exceeded):
        decode(MetadataRequest, version, body, limit=AT_ONCE_BYTES)
    count, request = count_steps(decode_in_turns(MetadataRequest, version, body))
    assert count >= 10_000 // (TURN_ELEMENTS + 1)
    assert request == decode(MetadataRequest, version, body)


def test_a_request_of_some_hundred_partitions_is_read_at_once() -> None:
    topics = [MetadataRequestTopic(name=f"{n:06}") for n in range(300)]
    body = encode(MetadataRequest(topics=topics), 12)
    assert decode(MetadataRequest, 12, body, limit=AT_ONCE_BYTES).topics == topics


def test_a_large_response_is_not_written_at_once() -> None:
    topics = [MetadataResponseTopic(name=f"{n:06}", partitions=[]) for n in range(10_000)]
    response = MetadataResponse(brokers=[], topics=topics)
    with pytest.raises(Exceeded):
        encode_parts(response, 12, AT_ONCE_ELEMENTS)
    count, parts = count_steps(encode_parts_in_turns(response, 12))
    assert count >= 10_000 // (TURN_ELEMENTS + 1)
    assert b"".join(parts) == encode(response, 12)
    assert max(map(len, parts)) < 64 * TURN_ELEMENTS, "a turn's bytes, not all of them"


def test_records_are_parts_of_their_own_also_in_turns() -> None:
    records = [bytes([n % 256]) * (LARGE_RECORDS_BYTES + 1) for n in range(2 * TURN_ELEMENTS)]
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=[
                    PartitionData(partition_index=n, high_watermark=0, records=each)
                    for n, each in enumerate(records)
                ],
            )
        ]
    )
    _, parts = count_steps(encode_parts_in_turns(response, 13))
    assert [part for part in parts if any(part is each for each in records)] == records
    assert b"".join(parts) == encode(response, 13)


def test_numbers_are_read_and_written_in_turns() -> None:
    request = DescribeProducersRequest(
        topics=[TopicRequest(name="t", partition_indexes=list(range(50_000)))]
    )
    body = encode(request, 0)
    with pytest.raises(Exceeded):
        decode(DescribeProducersRequest, 0, body, limit=AT_ONCE_BYTES)
    with pytest.raises(Exceeded):
        encode_parts(request, 0, AT_ONCE_ELEMENTS)
    count, read = count_steps(decode_in_turns(DescribeProducersRequest, 0, body))
    assert (count, read) == (6, request)
    count, parts = count_steps(encode_parts_in_turns(request, 0))
    assert count >= 6
    assert b"".join(parts) == body


@pytest.mark.parametrize(
    ("cls", "version", "body", "field_name", "number"),
    [
        (MetadataRequest, 1, (5_000_000).to_bytes(4, "big") + bytes(10_000_000), "topics", 5000000),
        (
            DescribeProducersRequest,
            0,
            b"\x02\x02t" + write_unsigned_varint(2_500_001) + bytes(10_000_000),
            "partition_indexes",
            2500000,
        ),
    ],
    ids=["structs", "numbers"],
)
def test_a_message_of_too_much_memory_is_refused_before_allocation(
    cls: type[Any], version: int, body: bytes, field_name: str, number: int
) -> None:
    steps = decode_in_turns(cls, version, body)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match=rf"{field_name} has the length {number}, .*67108864"):
            count_steps(steps)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_strings_count_as_large_as_they_are() -> None:
    names = [MetadataRequestTopic(name="x" * 32_000 + "\U0001f600") for _ in range(8)]
    body = encode(MetadataRequest(topics=names), 1)
    with pytest.raises(CorruptData, match="name has the length 32004"):
        count_steps(decode_in_turns(MetadataRequest, 1, body, limit=1_000_000))
    _, read = count_steps(decode_in_turns(MetadataRequest, 1, body, limit=1_100_000))
    assert read.topics == names


@pytest.mark.parametrize("count", [MAX_TAGS + 1, 2_500_000])
def test_more_tagged_fields_than_anybody_has_are_refused(count: int) -> None:
    head, tags = encode(DescribeProducersRequest(topics=[]), 0)[:-1], b"\x63\x00" * count
    with pytest.raises(CorruptData, match=f"DescribeProducersRequest has {count} tagged fields"):
        decode(DescribeProducersRequest, 0, head + write_unsigned_varint(count) + tags)


def test_tagged_fields_count_as_work() -> None:
    one = b"\x02t" + b"\x01" + write_unsigned_varint(MAX_TAGS) + b"\x63\x00" * MAX_TAGS
    body = b"\x0b" + one * 10 + b"\x00"
    with pytest.raises(Exceeded):
        decode(DescribeProducersRequest, 0, body, limit=AT_ONCE_BYTES)
    count, request = count_steps(decode_in_turns(DescribeProducersRequest, 0, body))
    assert len(request.topics) == 10
    assert count == 9, "each thousand of them ends a turn"
