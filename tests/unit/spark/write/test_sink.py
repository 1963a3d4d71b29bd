"""What a task does with its rows, and what its driver makes of it; without Spark's JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StringType, StructField, StructType  # noqa: E402

from trimtab.client.accumulator.table import PartitionSummary, TableSummary  # noqa: E402
from trimtab.kafka.errors import UsageError  # noqa: E402
from trimtab.spark.options.sink import read_sink_options  # noqa: E402
from trimtab.spark.resident import Residents  # noqa: E402
from trimtab.spark.write import sink  # noqa: E402
from trimtab.spark.write.sink import (  # noqa: E402
    Acknowledged,
    AtLeastOnce,
    TaskRows,
    Written,
    make_writer,
)
from trimtab.spark.write.stream_sink import TopicStreamWriter  # noqa: E402

if TYPE_CHECKING:
    from trimtab.client.blocking.producer import Producer

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t"}
SCHEMA = StructType([StructField("value", StringType())])


class FakeProducer:
    """Notes what is asked of it; rows are acknowledged, or fail, when it is flushed, or at once."""

    def __init__(self, client: dict[str, str] | None = None, *, at_once: bool = False) -> None:
        self.client = client
        self.calls: list[Any] = []
        self.error: Exception | None = None
        self.is_done = at_once

    def flush(self) -> None:
        self.calls.append("flush")
        self.is_done = True

    def close(self, timeout: float) -> None:
        self.calls.append(("close", timeout))


class FakeTable:
    """A table on a `FakeProducer`, and its delivery."""

    def __init__(
        self, producer: FakeProducer, topic: str, columns: dict[str, str], patience: float
    ) -> None:
        assert patience == 2
        self._producer = producer
        self.topic = topic
        self._columns = sorted(columns)
        self._rows = 0

    def send(self, rows: Any) -> None:
        self._rows += rows.num_rows
        values = rows.column("value").to_pylist()
        self._producer.calls.append((self.topic, values, self._columns))

    @property
    def stored(self) -> int:
        return self._rows if self._producer.is_done else 0

    def raise_failed(self) -> None:
        if self._producer.is_done and self._producer.error is not None:
            raise self._producer.error

    def end_table(self) -> FakeTable:
        return self

    def result(self) -> TableSummary:
        assert self._producer.is_done, "a task must not wait for rows before it has flushed"
        self.raise_failed()
        count = self._rows
        return TableSummary(
            self.topic, count, {0: PartitionSummary(count, 0, count - 1, 10 * count)}
        )


@pytest.fixture(autouse=True)
def fake_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.client.blocking.producer.OpenTable", FakeTable)


def batch(values: list[Any], topics: list[Any] | None = None) -> Any:
    columns = {"value": pa.array(values, pa.string())}
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.record_batch(columns)


def rows(*batches: Any, topic: str = "") -> TaskRows:
    return TaskRows(iter(batches), topic, ("value",) if topic else ("value", "topic"))


def test_rows_of_several_topics_keep_their_order_in_each() -> None:
    producer = FakeProducer()
    task = rows(batch(["1", "2", "3", "4", "5"], ["b", "a", "b", "c", "a"]), batch(["6"], ["a"]))
    assert task.send_to(cast("Producer", producer)) == {
        "b": {0: Written(2, 20)},
        "a": {0: Written(3, 30)},
        "c": {0: Written(1, 10)},
    }
    assert producer.calls == [
        ("b", ["1", "3"], ["value"]),
        ("a", ["2", "5"], ["value"]),
        ("c", ["4"], ["value"]),
        ("a", ["6"], ["value"]),
        "flush",
    ]


def test_a_thousand_topics_in_a_batch_are_told_apart() -> None:
    producer = FakeProducer()
    topics = [f"t{(7 * n) % 1000}" for n in range(3000)]
    rows(batch([str(n) for n in range(3000)], topics)).send_to(cast("Producer", producer))
    got = {topic: values for topic, values, _ in producer.calls[:-1]}
    assert got == {
        topic: [str(n) for n in range(3000) if topics[n] == topic] for topic in set(topics)
    }


def test_the_option_names_the_topic_of_all_rows() -> None:
    producer = FakeProducer()
    rows(batch(["1", "2"]), topic="t").send_to(cast("Producer", producer))
    assert producer.calls == [("t", ["1", "2"], ["value"]), "flush"]


def test_a_null_topic_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"2 rows have a null topic, the first in row 1 .*option"):
        rows(batch(["1", "2", "3"], ["a", None, None])).send_to(cast("Producer", FakeProducer()))


def test_batches_without_rows_are_passed_over() -> None:
    assert rows().is_empty
    assert rows(batch([]), batch([]), topic="t").is_empty
    producer = FakeProducer()
    task = rows(batch([]), batch(["1"]), batch([]), batch(["2"]), topic="t")
    assert not task.is_empty
    assert not task.is_empty
    task.send_to(cast("Producer", producer))
    assert [call[1] for call in producer.calls[:-1]] == [["1"], ["2"]]


def test_rows_may_be_passed_over() -> None:
    taken: list[Any] = []

    def read() -> Iterator[Any]:
        for each in ("1", "2"):
            taken.append(each)
            yield batch([each])

    TaskRows(read(), "t", ("value",)).skip()
    assert taken == ["1", "2"]


def test_a_failure_ends_the_task_before_it_reads_on() -> None:
    producer = FakeProducer(at_once=True)
    producer.error = ValueError("t-0: refused")

    def read() -> Iterator[Any]:
        yield batch(["1"])
        raise AssertionError("read on")

    with pytest.raises(ValueError, match="t-0: refused"):
        TaskRows(read(), "t", ("value",)).send_to(cast("Producer", producer))


# -- At least once


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    """Those that tasks have made, in a worker without any before."""
    made: list[FakeProducer] = []

    def make(client: dict[str, str]) -> FakeProducer:
        made.append(FakeProducer(client))
        return made[-1]

    monkeypatch.setattr("trimtab.client.blocking.producer.Producer", make)
    residents: Residents[Any] = Residents(sink._close, lambda seconds, call: None)
    monkeypatch.setattr(sink, "_producers", residents)
    return made


def guarantee(**options: str) -> AtLeastOnce:
    return AtLeastOnce(read_sink_options({**OPTIONS, **options}))


def test_the_message_comes_after_the_flush_and_counts_what_each_partition_took(
    producers: list[FakeProducer],
) -> None:
    message = guarantee().write(rows(batch(["1", "2"]), topic="t"))
    assert producers[0].calls[-1] == "flush"
    assert pickle.loads(pickle.dumps(message)) == Acknowledged({"t": {0: Written(2, 20)}})


def test_tasks_share_a_producer_if_their_options_are_the_same(
    producers: list[FakeProducer],
) -> None:
    for _ in range(3):
        guarantee().write(rows(batch(["1"]), topic="t"))
    guarantee(clientRack="a").write(rows(batch(["1"]), topic="t"))
    guarantee(clientRack="b").write(rows(batch(["1"]), topic="t"))
    assert [(made.client or {}).get("client.rack") for made in producers] == [None, "a", "b"]


def test_a_task_without_rows_needs_no_producer(producers: list[FakeProducer]) -> None:
    assert guarantee().write(rows(batch([]), topic="t")) == Acknowledged({})
    assert producers == []


def test_what_a_failed_task_has_not_sent_is_dropped_with_its_producer(
    producers: list[FakeProducer],
) -> None:
    with pytest.raises(UsageError, match="null topic"):
        guarantee().write(rows(batch(["1"], ["a"]), batch(["2"], [None])))
    assert producers[0].calls[-1] == ("close", 0)
    guarantee().write(rows(batch(["1"]), topic="t"))
    assert len(producers) == 2


def test_the_driver_counts_what_was_written(caplog: pytest.LogCaptureFixture) -> None:
    messages = [
        Acknowledged({"t": {0: Written(2, 20), 1: Written(3, 30)}}),
        Acknowledged({"u": {0: Written(1, 5)}}),
    ]
    with caplog.at_level("INFO"):
        guarantee().commit(messages, 7)
        guarantee().abort([messages[0], None], None)
        said = len(caplog.records)
        guarantee().abort([Acknowledged({}), None], None)
    assert "batch 7: 6 records of 55 bytes were written by 2 tasks" in caplog.text
    assert "the write has failed; the 5 records of tasks that succeeded stay" in caplog.text
    assert len(caplog.records) == said, "nothing is known to be stored"


def test_a_failed_task_speaks_of_rows_that_are_stored_and_of_no_others(
    producers: list[FakeProducer],
) -> None:
    notes = []
    for is_stored in (False, True):
        task = rows(batch(["1", "2"], ["a", "b"]), batch(["3"], [None]))
        client = guarantee()._options.client_here()
        producer = FakeProducer(at_once=is_stored)
        with sink._producers.borrow(client, lambda _, made=producer: made):  # type: ignore[misc]
            pass
        with pytest.raises(UsageError) as refused:
            guarantee().write(task)
        notes.append(getattr(refused.value, "__notes__", []))
    assert notes[0] == []
    assert "2 rows of this task are stored" in notes[1][0]


# -- Writers


def test_writers_are_checked_on_the_driver_and_pickled_to_the_tasks(
    producers: list[FakeProducer],
) -> None:
    for writer in (
        make_writer(OPTIONS, SCHEMA, overwrite=False),
        TopicStreamWriter(OPTIONS, SCHEMA),
    ):
        copy = pickle.loads(pickle.dumps(writer))
        message = copy.write(iter([batch(["1"])]))
        assert message == Acknowledged({"t": {0: Written(1, 10)}})
    assert len(producers) == 1


def test_columns_are_checked_before_any_task() -> None:
    no_value = StructType([StructField("key", BinaryType())])
    with pytest.raises(UsageError, match="column value is missing"):
        make_writer(OPTIONS, no_value, overwrite=False)
    with pytest.raises(UsageError, match="column value is missing"):
        TopicStreamWriter(OPTIONS, no_value)


def test_overwriting_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mode\('overwrite'\) is not .* use mode\('append'\)"):
        make_writer(OPTIONS, SCHEMA, overwrite=True)
