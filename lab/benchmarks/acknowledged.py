"""Producers that keep every acknowledgement, for comparison with the records stored in the end.

They are trimtab's producer and Apache Kafka's VerifiableProducer, both idempotent with acks=all;
each record's value is its number.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from lab.benchmarks.jars import java_command, kafka_jars
from lab.benchmarks.report import progress
from trimtab import Admin, Consumer, Producer, TopicPartition

PARTITIONS = 6
"""Partitions of each load's topic."""
OURS, JAVA = "trimtab", "java"

_KEYS = 60
"""Keys of Java's records; each partition has some of them, so that all get records all the time."""
_JAVA_OPTIONS = {
    "enable.idempotence": "true",
    "acks": "all",
    "retries": "2147483647",
    "linger.ms": "5",
    "delivery.timeout.ms": "120000",
}
_MOST_COMPLAINTS = 50
_TICK_S = 0.005
_END_S = 60


class Load:
    """One producer's records: those acknowledged, by partition, and the number that failed."""

    def __init__(self, name: str, topic: str, rate: int) -> None:
        self.name = name
        self._rate = rate
        self.topic = topic
        self.numbers = [array("q") for _ in range(PARTITIONS)]
        self.offsets = [array("q") for _ in range(PARTITIONS)]
        self.acknowledged_ms = [array("q") for _ in range(PARTITIONS)]
        self.failed = 0
        self.error = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more; return when every record is acknowledged or has failed."""
        self._ends.set()
        self._thread.join(3 * _END_S)
        if self._thread.is_alive():
            raise RuntimeError(f"{self.name}: the producer does not stop")

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.numbers))

    def _note(self, partition: int, offset: int, number: int, now_ms: int) -> None:
        self.numbers[partition].append(number)
        self.offsets[partition].append(offset)
        self.acknowledged_ms[partition].append(now_ms)

    def _run(self) -> None:
        raise NotImplementedError


class OurLoad(Load):
    """trimtab's producer, in a thread of this process."""

    def __init__(self, address: str, topic: str, rate: int) -> None:
        super().__init__(OURS, topic, rate)
        self._address = address

    def _run(self) -> None:
        number = 0
        began = time.perf_counter()
        with Producer(self._address, acks="all", linger_ms=5) as producer:
            while not self._ends.is_set():
                due = int((time.perf_counter() - began) * self._rate)
                while number < due:
                    producer.send(
                        self.topic,
                        b"%d" % number,
                        partition=number % PARTITIONS,
                        on_delivery=partial(self._delivered, number),
                    )
                    number += 1
                self._ends.wait(_TICK_S)
            producer.flush(2 * _END_S)

    def _delivered(self, number: int, delivery: Any) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.error = str(error)
            return
        _, partition, offset, *_ = delivery.result()
        self._note(partition, offset, number, time.time_ns() // 1_000_000)


class JavaLoad(Load):
    """Apache Kafka's VerifiableProducer, which prints each acknowledged value as JSON."""

    def __init__(self, address: str, topic: str, rate: int, directory: Path) -> None:
        super().__init__(JAVA, topic, rate)
        options = directory / "producer.properties"
        options.write_text("".join(f"{name}={value}\n" for name, value in _JAVA_OPTIONS.items()))
        with open(directory / "java.log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    *java_command("512m", "warn"),
                    *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.VerifiableProducer"),
                    *("--topic", self.topic, "--bootstrap-server", address, "--acks", "-1"),
                    *("--throughput", str(rate), "--repeating-keys", str(_KEYS)),
                    *("--command-config", str(options)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def stop(self) -> None:
        self._process.terminate()
        super().stop()
        self._process.wait(_END_S)

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                self._note(
                    event["partition"], event["offset"], int(event["value"]), event["timestamp"]
                )
            elif event["name"] == "producer_send_error":
                self.failed += 1
                self.error = f"{event['exception']}: {event['message']}"


class Comparison:
    """Compares a load's acknowledged records with the stored ones.

    Attributes:
        lost: acknowledged records whose offset has another record, or none.
        duplicated: records stored more than once.
        disordered: records stored after one with a higher number.
    """

    def __init__(self, load: Load, stored: list[dict[int, tuple[int, int]]]) -> None:
        self.load = load
        self.stored = sum(map(len, stored))
        self.lost = self.disordered = 0
        self._sent_ms: list[list[int]] = []
        times: Counter[int] = Counter()
        for partition, values in enumerate(stored):
            sent = []
            for offset, number in zip(
                load.offsets[partition], load.numbers[partition], strict=True
            ):
                there, at = values.get(offset, (-1, -1))
                sent.append(at)
                if there != number:
                    self.lost += 1
                    _complain(f"{load.topic}-{partition} offset {offset}: {there}, not {number}")
            self._sent_ms.append(sent)
            last = -1
            for offset, (number, _) in sorted(values.items()):
                if number < last:
                    self.disordered += 1
                    _complain(f"{load.topic}-{partition} offset {offset}: {number} after {last}")
                last = max(last, number)
            times.update(number for number, _ in values.values())
        twice = [number for number, count in times.items() if count > 1]
        self.duplicated = len(twice)
        for number in twice:
            _complain(f"{load.topic}: {number} is stored {times[number]} times")
        if load.failed:
            progress(f"{load.failed} records of {load.topic} failed; last error: {load.error}")

    @property
    def is_wrong(self) -> bool:
        return bool(self.lost or self.duplicated or self.disordered)

    def recovery_ms(self, since_ms: int, partitions: Iterable[int]) -> int:
        """Milliseconds after `since_ms` until every partition has acknowledged a record that was
        sent after it."""
        latest = 0
        for partition in partitions:
            acknowledged = self.load.acknowledged_ms[partition]
            sent = self._sent_ms[partition]
            # Acknowledgements come in order.
            first = next(
                (
                    acknowledged[index]
                    for index in range(bisect_right(acknowledged, since_ms), len(sent))
                    if sent[index] > since_ms
                ),
                acknowledged[-1] + _END_S * 1000,
            )
            latest = max(latest, first - since_ms)
        return latest


def await_all_partitions(loads: Iterable[Load]) -> None:
    deadline = time.monotonic() + _END_S
    while not all(all(load.numbers) for load in loads):
        if time.monotonic() > deadline:
            raise RuntimeError("not every partition has acknowledged something within a minute")
        time.sleep(0.1)


def read_stored(address: str, topic: str) -> list[dict[int, tuple[int, int]]]:
    """For each partition, the number and timestamp of every stored record by offset."""
    progress(f"reading {topic}")
    stored: list[dict[int, tuple[int, int]]] = [{} for _ in range(PARTITIONS)]
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Admin(address) as admin:
        missing = sum(end.offset for end in admin.list_offsets(partitions, "latest").values())
    with Consumer(address, check_crcs=True) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while missing > 0:
            records = consumer.poll(timeout_ms=20_000)
            if not records:
                raise RuntimeError(f"{missing} records of {topic} cannot be read")
            missing -= len(records)
            for record in records:
                number = int(record.value or b"-1")
                stored[record.partition][record.offset] = number, record.timestamp
    return stored


_complaints = count()


def _complain(what: str) -> None:
    if next(_complaints) < _MOST_COMPLAINTS:
        progress(f"WRONG: {what}")
