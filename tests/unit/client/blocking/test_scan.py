"""`read`, and the scan of a topic that it returns: what it reads, and what may go wrong."""

from __future__ import annotations

import gc
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import CodeType
from typing import Any

import polars
import pyarrow as pa
import pytest

from tests.unit.forked import in_child
from tests.unit.interrupts import interrupt_at
from trimtab import Admin, Cluster, DataLoss, Producer, TopicScan, read
from trimtab.client.blocking import range_reader
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.scan import _parts
from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.plan import Batches
from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.threads.loop_thread import shared

PARTITIONS, EACH = 4, 5_000
"""Of the topic `flights`, and records in each of its partitions."""
RECORD_BYTES = 1_000
BEGAN = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Record n of a partition of `flights` has the time BEGAN + n. `empty` has no records."""
    numbers = pa.array(range(EACH * PARTITIONS), pa.int64())
    flights = pa.table(
        {
            "value": pa.array([bytes(RECORD_BYTES)] * len(numbers), pa.binary()),
            "partition": pa.array([n % PARTITIONS for n in range(len(numbers))], pa.int32()),
            "timestamp": pa.array([BEGAN + n // PARTITIONS for n in range(len(numbers))]),
        }
    )
    with Cluster(brokers=2) as cluster:
        with (
            Admin(cluster.bootstrap_servers) as admin,
            Producer(cluster.bootstrap_servers) as producer,
        ):
            admin.create_topic("flights", PARTITIONS)
            admin.create_topic("empty", 2)
            columns = {"partition": "partition", "timestamp": "timestamp"}
            producer.send_table("flights", flights, **columns).result()
        yield cluster


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the responses to all fetches, in bytes."""
    sizes: list[int] = []
    count = ConsumerMetrics.fetched

    def note(self: ConsumerMetrics, node: int, size: int, *times: float) -> None:
        sizes.append(size)
        count(self, node, size, *times)

    monkeypatch.setattr(ConsumerMetrics, "fetched", note)
    return sizes


def send(servers: str, topic: str, values: range, **options: Any) -> None:
    with Producer(servers) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, **options)


def offsets_of(scan: TopicScan, batches: Iterator[Any] | None = None) -> dict[int, list[int]]:
    """The offsets that are read, by partition, in the order in which they come."""
    found: dict[int, list[int]] = {}
    for batch in scan.batches() if batches is None else batches:
        for row in batch.select(["partition", "offset"]).to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
    return found


def covered(scan: TopicScan) -> dict[int, list[int]]:
    return {n: list(range(start, end)) for n, (start, end) in scan.bounds.items() if start < end}


# what it reads


def test_a_scan_reads_its_bounds_again_and_again(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topic("growing", 2)
    send(servers, "growing", range(10), partition=0)
    scan = read("growing", servers)
    send(servers, "growing", range(10, 20), partition=1)
    assert scan.bounds == {0: (0, 10), 1: (0, 0)}
    for _ in range(2):
        assert offsets_of(scan) == {0: list(range(10))}
    assert read("growing", servers).size == 20


def test_bounds_by_offset_time_and_number(servers: str) -> None:
    every = range(PARTITIONS)
    assert read("flights", servers, start=10, end=20).bounds == dict.fromkeys(every, (10, 20))
    assert read("flights", servers, start=-7).bounds == dict.fromkeys(every, (EACH - 7, EACH))
    assert read("flights", servers, start="-1h").size == 0
    assert read("flights", servers, end="-1h").size == PARTITIONS * EACH
    timed = read("flights", servers, start="2023-11-14T22:13:21Z", end="2023-11-14T22:13:22Z")
    assert timed.bounds == dict.fromkeys(every, (1000, 2000))
    assert offsets_of(timed) == covered(timed)
    some = read(
        "flights", servers, start={3: 5, 1: "latest"}, end={1: EACH, 3: 7}, partitions=[3, 1]
    )
    assert some.bounds == {1: (EACH, EACH), 3: (5, 7)}
    assert some.size == 2
    assert offsets_of(some) == {3: [5, 6]}


def test_its_columns_are_those_that_are_named_in_their_order(servers: str) -> None:
    scan = read(
        "flights", servers, start=-1, partitions=[2], columns=["offset", "topic", "timestamp"]
    )
    (batch,) = scan.batches()
    assert batch.schema == scan.schema
    assert batch.to_pydict() == {
        "offset": [EACH - 1],
        "topic": ["flights"],
        "timestamp": [datetime.fromtimestamp((BEGAN + EACH - 1) / 1000, UTC)],
    }
    assert read("flights", servers).columns == (
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type"),
        "headers",
    )


def test_an_empty_topic_is_an_empty_table(servers: str) -> None:
    scan = read("empty", servers)
    assert scan.bounds == {0: (0, 0), 1: (0, 0)}
    assert pa.table(scan) == scan.schema.empty_table()
    assert polars.DataFrame(scan).shape == (0, 8)


def test_who_reads_arrow_reads_a_scan(servers: str) -> None:
    scan = read("flights", servers, end=100, columns=["partition", "value"])
    frame = polars.DataFrame(scan)
    assert frame.shape == (100 * PARTITIONS, 2)
    assert set(frame["value"]) == {bytes(RECORD_BYTES)}
    table = pa.table(scan)
    assert table.schema == scan.schema
    assert table.num_rows == 100 * PARTITIONS


def test_a_schema_may_be_requested(servers: str) -> None:
    scan = read("flights", servers, end=3, columns=["offset"])
    wanted = pa.schema([("offset", pa.int32())])
    assert pa.RecordBatchReader.from_stream(scan, wanted).read_all().schema == wanted


def test_a_thousand_partitions_are_read(servers: str, fetched: list[int]) -> None:
    with Admin(servers) as admin:
        admin.create_topic("wide", 1000)
    with Producer(servers) as producer:
        for number in range(1000):
            producer.send("wide", b"a", partition=number)
    scan = read("wide", servers)
    assert scan.size == 1000
    assert offsets_of(scan) == {number: [0] for number in range(1000)}
    assert len(fetched) < 200, "not a request for each partition"
    assert "and 980 more" in scan._repr_html_()


def test_a_stream_fetches_only_a_little_ahead(servers: str, fetched: list[int]) -> None:
    batches = read("flights", servers).batches()
    first = next(batches)
    assert first.nbytes < 2 << 20, "whoever wants a few rows need not wait for more"
    hold = shared()
    for _ in range(100):
        hold.run(_a_turn)
    hold.stop()
    assert sum(fetched) < EACH * PARTITIONS * RECORD_BYTES / 2
    assert first.num_rows + sum(each.num_rows for each in batches) == EACH * PARTITIONS


async def _a_turn() -> None:
    pass


def test_aborted_records_are_left_out_if_asked(servers: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic("paid", 1)
    with Producer(servers, transactional_id="pays") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send("paid", b"%d" % number).result()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.begin_transaction()
        for number in range(6, 26):
            producer.send("paid", b"%d" % number)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("paid", b"open").result()
        committed = read("paid", servers, isolation_level="read_committed", columns=["value"])
        values = [b"0", b"2", b"4", *(b"%d" % number for number in range(6, 26))]
        assert committed.bounds == {0: (0, 33)}
        assert pa.table(committed)["value"].to_pylist() == values
        every = read("paid", servers, columns=["value"])
        assert every.bounds == {0: (0, 34)}
        assert pa.table(every).num_rows == 27
        # Of 8 offsets two have a record, of the next 16 more than the others that are wanted.
        for count in (1, 2, 8, 23, 100):
            head = committed.to_polars().head(count).collect()
            assert head["value"].to_list() == values[:count]
        producer.abort_transaction()


def test_a_count_reads_twice_as_many_offsets_each_time() -> None:
    """So that few reads are needed where many offsets have no record."""
    ranges = [OffsetRange("t", 0, 5, 15), OffsetRange("t", 1, 0, 100)]
    parts = [
        [(each.partition, each.start, each.end) for each in part] for part in _parts(ranges, 6)
    ]
    assert parts == [
        [(0, 5, 11)],
        [(0, 11, 15), (1, 0, 8)],
        [(1, 8, 32)],
        [(1, 32, 80)],
        [(1, 80, 100)],
    ]
    assert list(_parts(ranges, None)) == [ranges]


# what may go wrong


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": ["vlaue"]}, "there is no column 'vlaue'; there are key"),
        ({"columns": "value"}, r"give a list of names, as in \['value'\]"),
        ({"partitions": [PARTITIONS]}, r"partitions=\[4\]: topic flights has partitions 0 to 3"),
        ({"partitions": []}, r"partitions=\[\]: topic flights has partitions 0 to 3; name some"),
        ({"partitions": 3}, r"partitions=3: give a list of numbers, as in \[0, 3\]"),
        ({"partitions": ["3"]}, "partition='3': is of type str"),
        ({"fail_on_data_loss": None}, "fail_on_data_loss=None: must be True or False"),
        ({"group_id": "g"}, "option group.id='g' has no use for read.*belongs to no group"),
        ({"auto_offset_reset": "latest"}, "start= and end= say what is read"),
        ({"value_deserializer": bytes.decode}, "decode the column value, which has bytes"),
        ({"fetch_mx_bytes": 1}, "did you mean fetch.max.bytes"),
        ({"start": "latest", "end": 3}, "the start, offset 5000, is after the end, offset 3"),
    ],
)
def test_a_wrong_argument_is_named(servers: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read("flights", servers, **given)


def test_a_topic_that_is_not_there_is_named(servers: str) -> None:
    with pytest.raises(BrokerError, match=r"topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"):
        read("nowhere", servers)


@pytest.mark.parametrize("package", ["pyarrow", "polars", "duckdb"])
def test_a_package_that_is_missing_is_named(
    servers: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = read("empty", servers)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs {package}, which is not .* pip install"):
        {"pyarrow": lambda: read("empty", servers)}.get(
            package, getattr(scan, f"to_{package}", print)
        )()


@pytest.fixture
def shrinking(servers: str) -> Iterator[str]:
    """A topic of two partitions with 10 records each, of which a test deletes some."""
    with Admin(servers) as admin:
        admin.create_topic("shrinking", 2)
        for partition in (0, 1):
            send(servers, "shrinking", range(10), partition=partition)
        yield "shrinking"
        if "shrinking" in admin.topics():
            admin.delete_topic("shrinking")


def test_records_that_are_deleted_before_they_are_read(
    servers: str, shrinking: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict = read(shrinking, servers)
    lax = read(shrinking, servers, fail_on_data_loss=False)
    with Admin(servers) as admin:
        admin.delete_records({(shrinking, 0): 4})
    with pytest.raises(DataLoss, match=r"shrinking-0: offset 0 is gone, the first one left is 4"):
        list(strict.batches())
    with pytest.raises(DataLoss, match="fail_on_data_loss=False reads what is left"):
        strict.to_polars().collect()
    with pytest.raises(pa.ArrowInvalid, match="shrinking-0: offset 0 is gone"):
        pa.table(strict)
    assert offsets_of(lax) == {0: list(range(4, 10)), 1: list(range(10))}
    assert "shrinking-0: offset 0 is gone" in caplog.text
    with pytest.raises(DataLoss, match="shrinking-0: start=3, but the log has offsets 4 to 10"):
        read(shrinking, servers, start=3)
    fitted = read(shrinking, servers, start=3, fail_on_data_loss=False)
    assert fitted.bounds == {0: (4, 10), 1: (3, 10)}


def test_a_topic_that_is_created_again_is_another_one(
    servers: str, shrinking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = read(shrinking, servers)
    monkeypatch.setattr(range_reader, "CONFIRM_SECONDS", 0.01)
    with Admin(servers) as admin:
        admin.delete_topic(shrinking)
        admin.create_topic(shrinking, 2)
    for partition in (0, 1):
        send(servers, shrinking, range(10), partition=partition)
    with pytest.raises(DataLoss, match=r"its topic was deleted and created again"):
        list(scan.batches())


def test_a_topic_that_is_deleted_is_data_loss_in_time(
    servers: str, shrinking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_SLICE_MS", 50)
    monkeypatch.setattr(range_reader, "GONE_SECONDS", 0.15)
    scan = read(shrinking, servers)
    with Admin(servers) as admin:
        admin.delete_topic(shrinking)
    with pytest.raises(DataLoss, match=r"shrinking-\d: offsets 0 to 10 are gone"):
        list(scan.batches())


def test_a_partition_without_a_leader_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_SLICE_MS", 50)
    with Cluster(brokers=2) as cluster, Admin(cluster.bootstrap_servers) as admin:
        servers = cluster.bootstrap_servers
        admin.create_topic("t", assignment={0: [0], 1: [1]})
        send(servers, "t", range(5), partition=0)
        send(servers, "t", range(5), partition=1)
        scan = read("t", servers, default_api_timeout_ms=1500, request_timeout_ms=1000)
        cluster.kill_broker(1)
        with pytest.raises(Unavailable, match=r"t-1: no data came for offsets 0 to 5, within 1500"):
            list(scan.batches())
        other = read("t", servers, partitions=[0])
        assert offsets_of(other) == {0: list(range(5))}
        with pytest.raises((BrokerError, Unavailable), match="t-1"):
            read("t", servers, default_api_timeout_ms=300, request_timeout_ms=200)


# streams that are left, and who uses them


def leave(scan: TopicScan) -> None:
    next(scan.batches())


def leave_a_capsule(scan: TopicScan) -> None:
    scan.__arrow_c_stream__()


def leave_in_a_cycle(scan: TopicScan) -> None:
    left: list[object] = [scan.batches()]
    next(left[0])  # type: ignore[call-overload]
    left.append(left)


def leave_a_reader(scan: TopicScan) -> None:
    pa.RecordBatchReader.from_stream(scan).read_next_batch()


@pytest.mark.parametrize("use", [leave, leave_in_a_cycle, leave_a_capsule, leave_a_reader])
def test_a_stream_that_is_left_is_closed_without_a_word(
    servers: str, use: Callable[[TopicScan], None], caplog: pytest.LogCaptureFixture
) -> None:
    scan = read("flights", servers)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            use(scan)
        gc.collect()
    await_end_of_clients()
    assert caplog.text == ""


def await_end_of_clients() -> None:
    """Until no client of this process is open: then their loop's thread ends."""
    hold = shared()
    thread = hold._engine.thread
    hold.stop() if len(hold._engine.holds) == 1 else hold.release_soon()
    thread.join(20)
    assert not thread.is_alive(), "a client is open"


def test_a_stream_may_be_dropped_on_the_loops_own_thread(servers: str) -> None:
    """As by its garbage collector: nothing may wait there."""
    hold = shared()
    streams = [read("flights", servers).batches()]
    next(streams[0])
    dropped = threading.Event()

    def drop() -> None:
        streams.clear()
        dropped.set()

    hold.call_soon(drop)
    assert dropped.wait(30)
    hold.stop()
    await_end_of_clients()


def test_threads_read_streams_of_one_scan(servers: str) -> None:
    scan = read("flights", servers, columns=["partition", "offset"])
    found: list[dict[int, list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append(offsets_of(scan))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [covered(scan)] * 3


def test_a_thread_may_go_on_with_anothers_stream(servers: str) -> None:
    scan = read("flights", servers)
    batches = scan.batches()
    rows = [next(batches).num_rows]
    thread = threading.Thread(target=lambda: rows.extend(each.num_rows for each in batches))
    thread.start()
    thread.join(60)
    assert sum(rows) == scan.size


def test_a_scan_can_be_sent_to_a_process(servers: str) -> None:
    scan = pickle.loads(pickle.dumps(read("flights", servers, end=3)))
    assert offsets_of(scan) == covered(scan)
    lax = read("flights", servers, end=3, fail_on_data_loss=False)
    assert pickle.loads(pickle.dumps(lax))._report_loss._fails is False


def test_a_forked_process_reads_the_scan_but_not_its_parents_stream(servers: str) -> None:
    scan = read("flights", servers, end=3000)
    batches = scan.batches()
    first = next(batches)
    assert "after the fork" in in_child(lambda: list(batches))
    assert in_child(lambda: offsets_of(scan) == covered(scan)) == "True"
    assert first.num_rows + sum(each.num_rows for each in batches) == scan.size


# Ctrl-C


def is_a_scans(code: CodeType) -> bool:
    return code.co_filename.endswith(("blocking/scan.py", "blocking/range_reader.py"))


def test_after_ctrl_c_at_any_line_the_scan_reads_again(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A consumer that Ctrl-C kept from reaching its stream is closed by its own finalizer.
    monkeypatch.setattr("trimtab.threads.loop_thread.warn_unclosed", lambda *said: None)
    scan = read("flights", servers, end=3, columns=["partition", "offset"])
    for step in range(1, 1000):
        place = interrupt_at(step, lambda: list(scan.batches()), is_a_scans)
        if step % 20 == 0 or place is None:
            assert offsets_of(scan) == covered(scan), place
        if place is None:
            break
    assert step > 50
    await_end_of_clients()


INTERRUPTED = """
import os, signal, sys
import duckdb, polars as pl, pyarrow as pa, trimtab
from trimtab.client.blocking.consumer import Consumer

fetch_batches, count = Consumer.fetch_batches, 0

def interrupted(self, timeout_ms):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGINT)  # of the process: it is the main thread's to raise
    return fetch_batches(self, timeout_ms)

scan = trimtab.read("flights", sys.argv[1])
flights = scan.to_duckdb()
READERS = {
    "batches": lambda: sum(each.num_rows for each in scan.batches()),
    "pyarrow": lambda: pa.table(scan).num_rows,
    "polars": lambda: pl.DataFrame(scan).height,
    "lazy": lambda: scan.to_polars().collect().height,
    "duckdb": lambda: duckdb.execute("SELECT count(value) FROM flights").fetchone()[0],
}
for name, read in READERS.items():
    Consumer.fetch_batches, count, ended = interrupted, 0, None
    try:
        try:
            ended = read()
        except (Exception, KeyboardInterrupt):
            for _ in range(10):
                pass  # Polars' streaming engine raises KeyboardInterrupt twice, whatever it reads
    except KeyboardInterrupt:
        pass
    Consumer.fetch_batches = fetch_batches
    print(name, ended, read(), read())
"""


def test_an_interrupted_cell_leaves_nothing_broken(servers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, servers],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = PARTITIONS * EACH
    readers = ("batches", "pyarrow", "polars", "lazy", "duckdb")
    assert done.stdout == "".join(f"{each} None {rows} {rows}\n" for each in readers), done.stderr


# what it shows


def test_it_shows_its_bounds_and_columns(servers: str) -> None:
    scan = read("flights", servers, start=-1000, columns=["key", "value"])
    assert repr(scan) == (
        "<TopicScan of flights: 4,000 offsets of 4 partitions, columns key, value>"
    )
    shown = scan._repr_html_()
    assert "<caption>TopicScan of flights: 4,000 offsets of 4 partitions, columns key" in shown
    assert "<tr><td>3</td><td>4,000</td><td>5,000</td><td>1,000</td></tr>" in shown


def test_every_second_without_data_gives_polars_a_chance_to_end(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_batches, silent = Consumer.fetch_batches, 0

    def fetch(self: Consumer, timeout_ms: float) -> Batches | None:
        nonlocal silent
        silent += 1
        return None if silent < 4 else fetch_batches(self, timeout_ms)

    monkeypatch.setattr(Consumer, "fetch_batches", fetch)
    scan = read("flights", servers, end=5)
    rows = [batch.num_rows for batch in scan._stream(scan.columns)]
    assert rows[:3] == [0, 0, 0]
    assert sum(rows) == scan.size
    silent = 0
    assert all(batch.num_rows for batch in scan.batches())


def test_an_error_of_a_broker_ends_the_stream(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no", "flights-0")

    monkeypatch.setattr(Consumer, "fetch_batches", refuse)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
        list(read("flights", servers).batches())
    await_end_of_clients()
    assert raised.traceback, "as a notebook keeps it, and so all that the stream had"


def test_a_process_may_end_with_a_stream_that_is_left(servers: str) -> None:
    program = (
        "import sys, trimtab\n"
        "batches = trimtab.read('flights', sys.argv[1]).batches()\n"
        "print(next(batches).num_rows > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
