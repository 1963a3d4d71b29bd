"""The largest possible requests, and how long each of them delays another client.

For every API of a broker, in its newest version, and for every array in its request: a request with
as many elements in that array as a node accepts (`MAX_OBJECT_BYTES`), each as short as possible,
and the same padded to `socket.request.max.bytes`. Then requests that name one partition a million
times, and members whose regular expressions are long. Then requests that are rejected: as many
elements as 100 MB can claim, and millions of tagged fields.

Requests that only brokers send to the controller go to it directly. Meanwhile two clients send
ApiVersions requests without a pause, one to the broker and one to the controller. Each output line
has their longest wait and its 99.9th percentile, and how far the memory of both nodes rose, also as
a multiple of the frame. Environment: `ONLY` (names of APIs, `shapes`, `tags`, `names`, separated by
commas), `SIZES` (`own`, or `own,largest` to add the padded requests), `WITHIN_MS` (50; a longer
wait makes the exit code 1).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any
from unittest.mock import Mock

from lab.benchmarks.patience import SingleBroker
from lab.benchmarks.report import progress
from lab.processes import nodes_of, peak_mib, reset_peak, resident_mib
from trimtab import Admin
from trimtab.cluster.broker.handlers import handlers_of
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import MAX_OBJECT_BYTES, decode_in_turns, encode
from trimtab.kafka.wire.framing import MAX_FRAME_BYTES
from trimtab.kafka.wire.messages import APIS, APIS_BY_REQUEST, Api
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.schema import Field, Schema, schema

ONLY = tuple(filter(None, os.environ.get("ONLY", "").split(",")))
WITHIN_MS = float(os.environ.get("WITHIN_MS", "50"))
SIZES = [
    MAX_FRAME_BYTES if size == "largest" else 0
    for size in os.environ.get("SIZES", "own,largest").split(",")
]
TO_CONTROLLER = (56, 59, 62, 63, 67)
"""AlterPartition, FetchSnapshot, BrokerRegistration, BrokerHeartbeat, AllocateProducerIds."""
PATIENCE_S = 120.0
KEPT = {
    "acks": 1,
    "timeout_ms": 1000,
    "validate_only": True,
    "replication_factor": 1,
    "num_partitions": 1,
    "max_batches": 1_000_000,
    "max_bytes": 2**62,
    "end_offset": -1,
}
"""Fields with fixed values, so that the requests create nothing."""

Path_ = tuple[str, ...]


def run(runs: int, records: int) -> None:
    is_late = False
    with SingleBroker() as cluster:
        with Admin(cluster.address) as admin:
            admin.create_topic("t", 100)
        for line in _measure_all(cluster):
            is_late |= max(line["p99.9_ms"], line["controller_p99.9_ms"]) > WITHIN_MS
            print(json.dumps(line), flush=True)
    if is_late:
        raise SystemExit(1)


def _measure_all(cluster: SingleBroker) -> Iterator[dict[str, Any]]:
    for key in (*handlers_of(Mock()), *TO_CONTROLLER):
        api = APIS[key]
        place = cluster.controller if key in TO_CONTROLLER else cluster.place
        if ONLY and api.name not in ONLY:
            continue
        for path in _arrays(schema(api.request), api.max_version):
            progress(f"largest: {api.name} {'.'.join(path)}")
            elements = _most(api, path)
            body = encode(
                _build(schema(api.request), api.max_version, path, elements), api.max_version
            )
            frame = _head(api) + body
            for size in SIZES:
                case = {"api": api.name, "array": ".".join(path), "elements": elements}
                yield case | _measure(cluster, frame, max(size, len(frame)), place)
    if not ONLY or "shapes" in ONLY:
        for name, request, version in _shapes(cluster):
            frame = _head(APIS_BY_REQUEST[type(request)], version) + encode(request, version)
            yield {"api": name} | _measure(cluster, frame, len(frame))
    if not ONLY or "tags" in ONLY:
        api = APIS_BY_REQUEST[FindCoordinatorRequest]
        tags = _head(api) + bytes(4) + b"\xa0\xcb\x98\x01" + b"\x63\x00" * 2_500_000
        yield {"api": "tags", "elements": 2_500_000} | _measure(cluster, tags, len(tags))
    if not ONLY or "names" in ONLY:
        for names in (5_000_000, 20_000_000):
            frame = struct.pack(">hhih", 3, 1, 1, -1) + names.to_bytes(4, "big") + bytes(2 * names)
            case = {"api": "names", "elements": names}
            yield case | _measure(cluster, frame, len(frame))


# -- the requests


def _head(api: Api, version: int | None = None) -> bytes:
    version = api.max_version if version is None else version
    flexible = b"\0" if version >= api.flexible_from else b""
    return struct.pack(">hhih", api.key, version, 1, -1) + flexible


def _shapes(cluster: SingleBroker) -> Iterator[tuple[str, Any, int]]:
    """Requests of few structures that cost more than their elements; each with its version."""
    for kind in (0, 1):  # the topics of the coordinators
        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
        api = APIS_BY_REQUEST[FindCoordinatorRequest]
        frame = _head(api) + encode(find, api.max_version)
        with socket.create_connection(cluster.place, PATIENCE_S) as connection:
            _ask(connection, len(frame).to_bytes(4, "big") + frame)
    million = [0] * 1_000_000
    yield (
        "AddPartitionsToTxn: a million times partition 0",
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="g",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=million)],
        ),
        3,
    )
    yield (
        "ConsumerGroupHeartbeat: a million times partition 0",
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=1,
            topic_partitions=[TopicPartitions(topic_id=bytes(16), partitions=million)],
        ),
        1,
    )
    for part, times in (("x*", 1000), ("t|", 4900), ("x{0,1000}", 47)):
        yield (
            f"ConsumerGroupHeartbeat: {times} times {part}",
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                topic_partitions=[],
                subscribed_topic_regex=part * times,
            ),
            1,
        )


def _arrays(owner: Schema, version: int) -> Iterator[Path_]:
    for each in _carried(owner, version):
        if each.is_array:
            yield (each.name,)
        if isinstance(each.type, Schema):
            for path in _arrays(each.type, version):
                yield each.name, *path


def _carried(owner: Schema, version: int) -> list[Field]:
    return [
        each
        for each in owner.fields
        if each.versions.includes(version) and not each.tagged_versions.includes(version)
    ]


def _build(owner: Schema, version: int, path: Path_, count: int, number: int = 0) -> Any:
    """A message with `count` elements in the array at `path`, and one in each around it."""
    values: dict[str, Any] = {}
    for each in _carried(owner, version):
        rest = path[1:] if path and path[0] == each.name else ()
        if each.name in KEPT:
            most = 2**31 - 1 if getattr(each.type, "code", "") == "i" else 2**63 - 1
            values[each.name] = min(KEPT[each.name], most)
        elif each.is_array:
            is_at, is_around = bool(path) and path == (each.name,), bool(rest)
            numbers = range(count if is_at else 1 if is_around else 0)
            values[each.name] = [_value(each, version, rest, count, n) for n in numbers]
        else:
            values[each.name] = _value(each, version, rest, count, number)
    return owner.cls(**values)


def _value(declared: Field, version: int, path: Path_, count: int, number: int) -> Any:
    kind = declared.type
    if isinstance(kind, Schema):
        nullable = declared.nullable_versions.includes(version) and not declared.is_array
        return None if nullable else _build(kind, version, path, count, number)
    if kind.name == "string":
        return f"{number:x}"
    if kind.name == "uuid":
        return number.to_bytes(16, "big")
    if kind.name in ("bytes", "records"):
        return b""
    if kind.name in ("int16", "uint16"):
        return number % 1000
    return number % 100 if kind.name == "int8" else bool(number) if kind.name == "bool" else number


def _most(api: Api, path: Path_) -> int:
    """The most elements of this array that a node accepts."""
    costs = [_cost(api, path, count) for count in (1000, 2000)]
    return int((MAX_OBJECT_BYTES - costs[0]) / (costs[1] - costs[0]) * 1000 * 0.99)


def _cost(api: Api, path: Path_, count: int) -> int:
    version = api.max_version
    body = encode(_build(schema(api.request), version, path, count), version)
    low, high = 0, 1 << 24
    while low < high:
        limit = (low + high) // 2
        try:
            for _ in decode_in_turns(api.request, version, body, limit=limit):
                pass
        except CorruptData:
            low = limit + 1
        else:
            high = limit
    return low


# -- the cost for other clients


def _measure(
    cluster: SingleBroker, frame: bytes, size: int, place: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Send `frame`, padded to `size` bytes, and measure its effects."""
    place = place or cluster.place
    pids = list(nodes_of(cluster.supervisor_pid).values())
    before = [resident_mib(pid) for pid in pids]
    for pid in pids:
        reset_peak(pid)
    probes = [_Probe(each) for each in (cluster.place, cluster.controller)]
    began = time.perf_counter()
    answer = 0
    with socket.create_connection(place, PATIENCE_S) as connection:
        try:
            connection.sendall(size.to_bytes(4, "big") + frame)
            rest = memoryview(bytes(size - len(frame)))
            connection.sendall(rest)
            answer = _read(connection)
        except ConnectionError:
            pass
    seconds = time.perf_counter() - began
    broker, controller = (probe.end() for probe in probes)
    rise = sum(peak_mib(pid) - mib for pid, mib in zip(pids, before, strict=True))
    return {
        "frame_mib": round(size / 2**20, 1),
        "answer_mib": round(answer / 2**20, 1) if answer else "refused",
        "seconds": round(seconds, 2),
        "probes": len(broker),
        "worst_ms": round(broker[-1] * 1000, 1),
        "p99.9_ms": round(broker[int(len(broker) * 0.999)] * 1000, 1),
        "controller_worst_ms": round(controller[-1] * 1000, 1),
        "controller_p99.9_ms": round(controller[int(len(controller) * 0.999)] * 1000, 1),
        "memory_mib": round(rise, 1),
        "memory_to_frame": round(rise / (size / 2**20), 2),
    }


def _read(connection: socket.socket) -> int:
    """The size of a response in bytes; 0 if the connection was closed instead."""
    stream = connection.makefile("rb")
    left = size = int.from_bytes(stream.read(4), "big")
    while left:
        left -= len(stream.read(min(left, 1 << 20)))
    return size


class _Probe:
    """A client in its own process, which sends requests without a pause until `end`."""

    def __init__(self, place: tuple[str, int]) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(place, theirs))
        self._process.start()
        self._pipe.recv()

    def end(self) -> list[float]:
        """Stop the client; the time of each request in seconds, sorted."""
        self._pipe.send(None)
        waits: list[float] = sorted(self._pipe.recv())
        self._process.join()
        return waits


def _probe(place: tuple[str, int], pipe: Any) -> None:
    """Send one request after the other, and return how long each took."""
    body = struct.pack(">hhih", 18, 0, 1, -1) + encode(ApiVersionsRequest(), 0)
    frame = len(body).to_bytes(4, "big") + body
    waits = []
    with socket.create_connection(place, PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(connection, frame)
        pipe.send(None)
        while not pipe.poll():
            began = time.perf_counter()
            _ask(connection, frame)
            waits.append(time.perf_counter() - began)
            time.sleep(0.0005)
    pipe.send(waits)


def _ask(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)
    left = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    while left:
        left -= len(connection.recv(left))


if __name__ == "__main__":
    run(1, 0)
