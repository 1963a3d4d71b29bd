"""What a connection does with frames: whatever they are, and in whichever order answers come.

`trimtab.cluster.server.connection`, `trimtab.cluster.server.request` and
`trimtab.cluster.server.faults`, with the handlers that have little to decide:
`trimtab.cluster.server.api_versions`, `trimtab.cluster.broker.handlers.coordinators`,
`trimtab.cluster.broker.handlers.groups` and `trimtab.cluster.broker.handlers.producer_ids`.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.wire.framing import decode_correlation_id, decode_response, encode_request
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest

API_VERSIONS = ApiVersionsRequest(client_software_name="lab", client_software_version="1")
ALL_TOPICS = MetadataRequest(topics=None)


async def test_api_versions_advertises_what_is_served(lab: Any) -> None:
    response = await lab.connect().ask(API_VERSIONS, 4)
    ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert ranges.pop(0) == (0, 13)  # librdkafka stops compressing where it is not 0
    assert ranges == {
        key: (api.min_version, api.max_version)
        for key, api in lab.brokers[0].listener.apis.items()
        if key
    }


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(lab: Any) -> None:
    client = lab.connect()
    client.send_frame(struct.pack(">hhihx", 18, 99, 7, -1) + b"what a later version may hold")
    (frame,) = client.responses
    assert decode_correlation_id(frame) == 7
    response = decode_response(ApiVersionsResponse, 0, frame)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [
        (18, 0, 4)
    ]
    assert not client.transport.closed


@pytest.mark.parametrize("name", ["", "-x", "x y", "naïve"])
async def test_invalid_software_names_are_refused(lab: Any, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert (await lab.connect().ask(request, 3)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("what", "frame"),
    [
        ("an API that nobody knows", struct.pack(">hhih", 999, 0, 1, -1)),
        ("a version that is not served", struct.pack(">hhih", 0, 2, 1, -1) + bytes(20)),
        ("nothing", b""),
        ("half a header", b"\0\3\0"),
        ("a client id that does not fit", struct.pack(">hhih", 3, 4, 1, 500)),
        ("a body that is none", struct.pack(">hhih", 3, 4, 1, -1) + b"\x7f\xff\xff\xff"),
    ],
)
def test_an_invalid_request_closes_only_its_connection(
    lab: Any, what: str, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        client, other = lab.connect(), lab.connect()
        client.send_frame(frame)
        client.send_frame(frame)
        assert client.transport.closed, what
        assert not client.responses
        assert (await other.ask(ALL_TOPICS, 12)).brokers[0].node_id == 0
        counts = lab.brokers[0].listener.counts
        assert (counts.refused, counts.failed) == (1, 0)

    lab.run(scenario)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "peer=192.0.2.1:12345" in caplog.text


@pytest.mark.parametrize("length", [-1, 1025, 2**31 - 1])
@pytest.mark.run(config={"socket.request.max.bytes": 1024})
async def test_an_invalid_frame_length_closes_the_connection(lab: Any, length: int) -> None:
    client = lab.connect()
    client.send_bytes(struct.pack(">i", length))
    assert client.transport.closed
    assert lab.brokers[0].listener.counts.refused == 1


async def test_bytes_after_a_metadata_request_for_all_topics_are_ignored(lab: Any) -> None:
    """librdkafka encodes the null array in four bytes, although the version is flexible."""
    client = lab.connect()
    client.send_frame(struct.pack(">hhihx", 3, 13, 1, -1) + bytes.fromhex("00000000010000"))
    assert len(client.responses) == 1


async def test_frames_that_arrive_together_are_answered_in_order(lab: Any) -> None:
    client = lab.connect()
    frames = [
        b"".join(bytes(part) for part in encode_request(request, version, number, None))
        for number, (request, version) in enumerate(
            [
                (ALL_TOPICS, 12),
                # This one waits for the controller.
                (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4),
                (API_VERSIONS, 3),
                (ALL_TOPICS, 5),
            ]
        )
    ]
    client.send_bytes(b"".join(frames))
    assert len(client.responses) == 1
    assert not client.transport.reading  # the others wait, and nothing more is read
    await asyncio.sleep(1)
    assert [decode_correlation_id(frame) for frame in client.responses] == [0, 1, 2, 3]
    assert client.transport.reading


async def test_a_client_that_does_not_read_is_not_served(lab: Any) -> None:
    client = lab.connect()
    client.connection.pause_writing()
    for _ in range(3):
        client.send(ALL_TOPICS, 12)
    assert not client.responses
    assert not client.transport.reading
    client.connection.resume_writing()
    assert len(client.responses) == 3
    assert client.transport.reading


@pytest.mark.run(config={"connections.max.idle.ms": 1000})
async def test_idle_connections_are_closed_and_busy_ones_are_not(lab: Any) -> None:
    idle, busy = lab.connect(), lab.connect()
    for _ in range(5):
        await asyncio.sleep(0.6)
        await busy.ask(ALL_TOPICS, 12)
    assert idle.transport.closed
    assert not busy.transport.closed
    await asyncio.sleep(1.1)
    assert busy.transport.closed
    await asyncio.sleep(0)
    assert lab.brokers[0].listener.counts.open == 0


@pytest.mark.run(config={"max.connections": 2})
async def test_one_connection_too_many_is_closed(lab: Any) -> None:
    first, second, third = lab.connect(), lab.connect(), lab.connect()
    assert [each.transport.closed for each in (first, second, third)] == [False, False, True]
    first.transport.close()
    await asyncio.sleep(0.01)
    assert not lab.connect().transport.closed


@pytest.mark.run(config={"max.connections.per.ip": 2})
async def test_one_connection_too_many_of_an_address_is_closed(lab: Any) -> None:
    first, second, third = lab.connect(), lab.connect(), lab.connect()
    assert [each.transport.closed for each in (first, second, third)] == [False, False, True]
    second.transport.close()
    await asyncio.sleep(0.01)
    assert not lab.connect().transport.closed


async def test_a_slow_broker_answers_one_produce_request_of_a_connection_at_a_time(
    lab: Any,
) -> None:
    await lab.create_topic("t")
    broker = lab.brokers[0]
    broker.listener.faults.slow(produce_ms=20)
    loop = asyncio.get_running_loop()
    began = loop.time()
    client, other = lab.connect(), lab.connect()
    for _ in range(3):
        client.send(lab.produce("t", lab.batch(b"v")), 9)
    client.send(ALL_TOPICS, 12)
    other.send(ALL_TOPICS, 12)
    assert (len(client.responses), len(other.responses)) == (0, 1)
    assert broker.partitions["t", 0].high_watermark == 1
    for number in (1, 2, 3):
        await asyncio.sleep(began + 0.02 * number - 0.001 - loop.time())
        assert len(client.responses) == number - 1
        await asyncio.sleep(0.002)
    assert len(client.responses) == 4  # Metadata, with the last produce response
    broker.listener.faults.slow(produce_ms=0)
    client.send(lab.produce("t", lab.batch(b"v")), 9)
    assert len(client.responses) == 5
    with pytest.raises(UsageError, match="produce_ms=-1"):
        broker.listener.faults.slow(produce_ms=-1)


def test_a_failing_handler_closes_its_connection(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the broker's own")

    async def scenario() -> None:
        monkeypatch.setitem(lab.brokers[0].listener.handlers, 3, fail)
        client = lab.connect()
        client.send(ALL_TOPICS, 12)
        assert client.transport.closed
        assert lab.brokers[0].listener.counts.failed == 1

    lab.run(scenario)
    assert "a fault of the broker's own" in caplog.text


@pytest.mark.parametrize(
    ("kind", "version", "code", "word"),
    [
        (2, 6, ErrorCode.UNSUPPORTED_VERSION, "share groups"),
        (9, 6, ErrorCode.INVALID_REQUEST, "type 9"),
    ],
)
async def test_a_coordinator_is_refused_for_good_and_the_answer_says_why(
    lab: Any, kind: int, version: int, code: ErrorCode, word: str
) -> None:
    if version >= 4:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b"])
    elif version >= 1:
        request = FindCoordinatorRequest(key="a", key_type=kind)
    else:
        request = FindCoordinatorRequest(key="a")
    response = await lab.connect().ask(request, version)
    if version >= 4:
        assert [each.key for each in response.coordinators] == ["a", "b"]
    for each in response.coordinators if version >= 4 else [response]:
        assert each.error_code == code
        assert not code.retriable
        assert version == 0 or word in each.error_message


async def test_an_unregistered_broker_is_not_a_coordinator(lab: Any) -> None:
    del lab.brokers[0].image.brokers[0]  # as UnregisterBroker does
    response = await lab.connect().ask(FindCoordinatorRequest(key="g"), 2)
    assert (response.error_code, response.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_producer_ids_are_never_assigned_twice(lab: Any) -> None:
    async def scenario() -> set[int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        ids = set()
        for number in (0, 1) * 2:
            client = lab.connect(number)
            for _ in range(600):
                response = await client.ask(request, 5)
                assert (response.error_code, response.producer_epoch) == (0, 0)
                ids.add(response.producer_id)
        return ids

    first = lab.run(scenario, brokers=2)
    second = lab.run(scenario, brokers=2)  # the same disks: a restart
    assert len(first) == len(second) == 2400
    assert not first & second
