"""Transactions in a log: its last stable offset and its aborted transactions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from tests.unit.cluster.storage.logs import DIRECTORY, Clock, batch
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.open_transactions import EndedTransaction, OpenTransactions
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.storage import StorageError
from trimtab.cluster.storage.transaction_index import decode_aborted, encode_aborted, find_aborted
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.end_markers import EndMarker, build_marker
from trimtab.sim.disk import VirtualDisk

pytestmark = pytest.mark.kip(98)

CONFIG = LogConfig(segment_bytes=700)
"""About six batches fill a segment."""
PRODUCERS = 4
LENGTH_OF_VALUE = 70
"""Where a marker has it, in bytes from the begin of its batch."""


def send(log: Log, producer_id: int, sequence: int, epoch: int = 0, records: int = 1) -> None:
    identity: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": True,
    }
    data = batch(records, **identity)
    log.append(data, 0, read_headers(data))


def end(
    log: Log, producer_id: int, commit: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> None:
    marker = EndMarker(commit, coordinator_epoch)
    data = memoryview(build_marker(producer_id, epoch, marker, 1000))
    log.append(data, 0, read_headers(data))


@pytest.fixture
def log(disk: VirtualDisk, clock: Clock) -> Log:
    return Log(disk, DIRECTORY, CONFIG, clock)


def spans(log: Log, offset: int, end_offset: int) -> list[tuple[int, int]]:
    return [
        (each.first_offset, each.last_offset) for each in log.aborted_between(offset, end_offset)
    ]


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed(log: Log) -> None:
    send(log, 1, 0)
    send(log, 2, 0, records=3)
    log.high_watermark = 4
    assert log.last_stable_offset == 0
    end(log, 1, commit=True)
    assert log.last_stable_offset == 0
    log.high_watermark = 5
    assert log.last_stable_offset == 1
    end(log, 2, commit=False)
    assert log.last_stable_offset == 1
    log.high_watermark = 6
    assert log.last_stable_offset == 6
    assert spans(log, 0, 6) == [(1, 5)]
    assert spans(log, 5, 6) == [(1, 5)]
    assert spans(log, 0, 1) == []


def test_a_marker_without_a_transaction_changes_nothing(log: Log) -> None:
    end(log, 1, commit=False)
    log.high_watermark = 1
    assert (log.last_stable_offset, spans(log, 0, 1)) == (1, [])


def test_deleted_records_are_stable(log: Log) -> None:
    send(log, 1, 0, records=5)
    send(log, 2, 0)
    log.high_watermark = 6
    log.delete_records_before(3)
    assert log.last_stable_offset == 3


def test_a_batch_outside_the_open_transaction_is_refused(log: Log) -> None:
    send(log, 1, 0)
    (outside,) = read_headers(batch(producer_id=1, producer_epoch=0, base_sequence=1))
    (other,) = read_headers(batch(producer_id=2, producer_epoch=0, base_sequence=0))
    assert log.producers.check_batch(outside).error is ErrorCode.INVALID_TXN_STATE
    assert log.producers.check_batch(other) is ACCEPTED
    end(log, 1, commit=True)
    assert log.producers.check_batch(outside) is ACCEPTED


@pytest.mark.kip(890)
@pytest.mark.parametrize(
    ("version", "epoch", "coordinator_epoch", "is_open", "error"),
    [
        (1, 4, 2, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 5, 2, True, ErrorCode.NONE),
        (1, 6, 2, True, ErrorCode.NONE),
        (1, 5, 1, True, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (1, 5, 1, False, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 4, 2, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 5, 2, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 5, 2, False, ErrorCode.NONE),  # sent again
        (2, 6, 2, True, ErrorCode.NONE),
        (2, 6, 1, True, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_which_markers_are_stored(
    log: Log, version: int, epoch: int, coordinator_epoch: int, is_open: bool, error: ErrorCode
) -> None:
    send(log, 1, 0, epoch=5)
    end(log, 1, commit=True, epoch=5, coordinator_epoch=2)
    if is_open:
        send(log, 1, 1, epoch=5)
    verdict = log.producers.check_marker(1, epoch, coordinator_epoch, version)
    assert verdict.error is error
    assert log.producers.check_marker(9, epoch, coordinator_epoch, version) is ACCEPTED


@pytest.mark.kip(890)
def test_the_highest_epoch_may_end_more_than_one_transaction(log: Log) -> None:
    send(log, 1, 0, epoch=32767)
    assert log.producers.check_marker(1, 32767, 0, 2) is ACCEPTED


def test_a_producer_with_an_open_transaction_is_not_forgotten(log: Log, clock: Clock) -> None:
    send(log, 1, 0)
    send(log, 2, 0)
    end(log, 2, commit=True)
    clock.ms += 10**9
    log.producers.expire(clock.ms)
    (known,) = log.producers.describe()
    assert (known.id, known.open_since_offset, known.coordinator_epoch) == (1, 0, -1)


def test_a_new_epoch_keeps_transaction_and_coordinator(log: Log) -> None:
    send(log, 1, 0)
    end(log, 1, commit=True, coordinator_epoch=3)
    send(log, 1, 1)
    send(log, 1, 0, epoch=1)
    (known,) = log.producers.describe()
    assert (known.epoch, known.coordinator_epoch, known.open_since_offset) == (1, 3, 2)


# The file of a segment


def test_its_entries_are_those_of_kafka() -> None:
    (entry,) = (EndedTransaction(7, 1, 5, 6),)
    assert encode_aborted([entry]).hex() == (
        "00000000000000000007000000000000000100000000000000050000000000000006"
    )
    assert decode_aborted(encode_aborted([entry]), 5) == [entry]


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        encode_aborted([EndedTransaction(7, 1, 5, 6)])[:-1],
        b"\0\1" + encode_aborted([EndedTransaction(7, 1, 5, 6)])[2:],
        encode_aborted([EndedTransaction(7, 5, 5, 6)]),
        encode_aborted([EndedTransaction(7, 1, 4, 6)]),
        encode_aborted([EndedTransaction(7, 1, 9, 10), EndedTransaction(8, 1, 9, 10)]),
        encode_aborted([EndedTransaction(-1, 1, 9, 10)]),
        bytes(34),
    ],
)
def test_a_damaged_file_is_noticed(content: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_aborted(content, 5)


def test_a_changed_file_is_made_again_from_the_log(
    disk: VirtualDisk, clock: Clock, log: Log
) -> None:
    """Kafka's format has no CRC: most changed bits leave entries that could be right."""
    for sequence in range(9):
        send(log, 1 + sequence % 2, sequence)
        send(log, 3, sequence)
        end(log, 1 + sequence % 2, commit=False)
    end(log, 3, commit=False)
    log.close()
    name = f"{DIRECTORY}/{0:020d}.txnindex"
    content = disk.read_file(name)
    assert content is not None
    crc = disk.read_file(f"{name}.crc")
    expected = spans(log, 0, log.log_end_offset)
    changes = [bytes(content[: -len(content) // 2]), None]
    for bit in range(0, 8 * len(content), 5):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        changes.append(bytes(changed))
    for each in changes:
        if each is None:
            disk.delete(name)
        else:
            disk.write_file(name, each)
        again = Log(disk, DIRECTORY, CONFIG, clock, clean=True, high_watermark=28)
        assert spans(again, 0, again.log_end_offset) == expected
        again.close()
        assert (disk.read_file(name), disk.read_file(f"{name}.crc")) == (content, crc)


def test_a_damaged_file_is_made_again_from_the_log(
    disk: VirtualDisk, clock: Clock, log: Log
) -> None:
    for sequence in range(30):
        send(log, 1, sequence)
        end(log, 1, commit=False)
    log.close()
    names = [name for name in disk.list(DIRECTORY) if ".txnindex" in name]
    assert len(names) > 10
    contents = {name: disk.read_file(f"{DIRECTORY}/{name}") for name in names}
    for name in names:
        disk.write_file(f"{DIRECTORY}/{name}", b"damaged")
        again = Log(disk, DIRECTORY, CONFIG, clock, clean=True, high_watermark=60)
        assert spans(again, 0, 60) == [(n, n + 1) for n in range(0, 60, 2)]
        again.close()
        assert disk.read_file(f"{DIRECTORY}/{name}") == contents[name]


@pytest.mark.parametrize("high_watermark", [0, 12, 13, 39])
def test_a_damaged_marker_costs_no_committed_record(
    disk: VirtualDisk, clock: Clock, log: Log, high_watermark: int
) -> None:
    """A truncation reads the markers before it. If one is damaged, it truncates further; if that
    would delete committed records, the log fails, and the next run tells of the loss."""
    for sequence in range(20):
        send(log, 1, sequence)
        end(log, 1, commit=True)
    log.high_watermark = high_watermark
    path = f"{DIRECTORY}/{12:020}.log"  # the segment of 12 to 17
    data = disk.read_file(path)
    assert data is not None
    send_size = read_headers(data)[0].size
    disk.flip(path, send_size + LENGTH_OF_VALUE, 2, lasts=True)
    if high_watermark <= 12:
        log.truncate(16)
        assert log.log_end_offset == 12
        return
    with pytest.raises(StorageError, match="cannot read what was written"):
        log.truncate(16)
    assert log.has_failed
    log.close()
    lost: list[bool] = []
    changes = LogChanges[Log](on_loss=lambda: lost.append(True))
    again = Log(disk, DIRECTORY, CONFIG, clock, recovery_point=16, changes=changes)
    assert (again.log_end_offset, lost) == (13, [True])


def test_a_search_ends_where_no_later_transaction_can_have_begun() -> None:
    segments = [[EndedTransaction(1, 0, 9, 10)], [EndedTransaction(2, 11, 19, 20)]]

    def read() -> Any:
        yield segments[0]
        raise AssertionError("the second segment is not needed")

    assert find_aborted(read(), 0, 10) == segments[0]
    assert find_aborted(segments, 0, 12) == [*segments[0], *segments[1]]
    assert find_aborted(segments, 10, 12) == segments[1]


def test_undecided_transactions_are_forgotten_in_any_order() -> None:
    state = OpenTransactions()
    for producer_id in range(4):
        state.open_transaction(producer_id, 10 * producer_id)
    for producer_id, marker in ((2, 40), (0, 41), (3, 42), (1, 43)):
        state.note_marker(producer_id, marker)
    assert [state.first_unstable(mark) for mark in (40, 41, 42, 43, 44)] == [0, 0, 10, 10, None]


# Against a model


@dataclass
class Model:
    """What a log with transactions must say, computed from all that was appended."""

    entries: list[tuple[int, int, int, str]] = field(default_factory=list)
    """First and next offset, producer id, and what it is: data, commit, abort, or plain."""

    @property
    def end_offset(self) -> int:
        return self.entries[-1][1] if self.entries else 0

    def ended(self) -> tuple[list[EndedTransaction], dict[int, int]]:
        """The transactions that have ended, aborted ones with a last stable offset; and those that
        are open."""
        opened: dict[int, int] = {}
        ended = []
        for first, _, producer_id, what in self.entries:
            if what == "data":
                opened.setdefault(producer_id, first)
            elif what != "plain" and (began := opened.pop(producer_id, None)) is not None:
                stable = min(opened.values(), default=first + 1) if what == "abort" else -1
                ended.append(EndedTransaction(producer_id, began, first, stable))
        return ended, opened

    def last_stable_offset(self, high_watermark: int) -> int:
        ended, opened = self.ended()
        undecided = [each.first_offset for each in ended if each.last_offset >= high_watermark]
        return min([high_watermark, *undecided, *opened.values()])

    def aborted(self, offset: int, end_offset: int) -> list[EndedTransaction]:
        return [
            each
            for each in self.ended()[0]
            if each.last_stable_offset >= 0
            and each.last_offset >= offset
            and each.first_offset < end_offset
        ]


class Scene:
    """A log, its model, and random steps."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = VirtualDisk()
        self.clock = Clock()
        self.log = Log(self.disk, DIRECTORY, CONFIG, self.clock)
        self.model = Model()
        self.sequences = [0] * PRODUCERS
        self.checkpoint = 0

    def step(self) -> None:
        steps = [self.send] * 6 + [self.end] * 4 + [self.plain, self.commit, self.commit, self.roll]
        self.random.choice([*steps, self.truncate, self.reopen, self.reopen])()
        self.check()

    def note(self, producer_id: int, what: str) -> None:
        self.model.entries.append(
            (self.model.end_offset, self.log.log_end_offset, producer_id, what)
        )

    def send(self) -> None:
        producer_id = self.random.randrange(PRODUCERS)
        records = self.random.randint(1, 3)
        send(self.log, producer_id, self.sequences[producer_id], records=records)
        self.sequences[producer_id] += records
        self.note(producer_id, "data")

    def end(self) -> None:
        producer_id, commit = self.random.randrange(PRODUCERS), self.random.random() < 0.5
        end(self.log, producer_id, commit)
        self.note(producer_id, "commit" if commit else "abort")

    def plain(self) -> None:
        data = batch(2)
        self.log.append(data, 0, read_headers(data))
        self.note(-1, "plain")

    def commit(self) -> None:
        """Some of the log is committed."""
        self.log.high_watermark = self.random.randint(
            self.log.high_watermark, self.log.log_end_offset
        )

    def roll(self) -> None:
        self.log.roll()

    def truncate(self) -> None:
        firsts = [e[0] for e in self.model.entries if e[0] >= self.log.high_watermark]
        if firsts:
            offset = self.random.choice(firsts)
            self.log.truncate(offset)
            self.model.entries = [e for e in self.model.entries if e[0] < offset]

    def reopen(self) -> None:
        """After a clean end, or a kill with any checkpoints, which may be old."""
        clean = self.random.random() < 0.4
        mark = self.log.high_watermark
        if clean:
            self.log.close()
        else:
            mark = self.random.choice((mark, self.random.randint(0, mark), 0))
            if self.random.random() < 0.3:
                self.log.flush()
            self.log.abandon()
        self.log = Log(
            self.disk,
            DIRECTORY,
            CONFIG,
            self.clock,
            recovery_point=self.log.recovery_point,
            high_watermark=mark,
            clean=clean,
        )
        assert self.log.log_end_offset == self.model.end_offset

    def check(self) -> None:
        log, model, random = self.log, self.model, self.random
        stable = model.last_stable_offset(log.high_watermark)
        assert log.last_stable_offset == stable
        end_offset = random.randint(0, stable)
        for first, last in ((0, stable), (random.randint(0, end_offset), end_offset)):
            assert log.aborted_between(first, last) == model.aborted(first, last)


@pytest.mark.parametrize("seed", range(40))
def test_a_log_is_what_its_model_says(seed: int) -> None:
    scene = Scene(seed)
    for _ in range(150):
        scene.step()


def test_followers_have_the_same(disk: VirtualDisk, clock: Clock) -> None:
    scene = Scene(7)
    for _ in range(200):
        scene.step()
    copy = Log(disk, "copy-0", replace(CONFIG, segment_bytes=1000), clock)
    offset = 0
    while data := scene.log.read(offset, 2000):
        assert isinstance(data, bytes | memoryview)
        headers = read_headers(data)
        copy.append_replicated(memoryview(data), headers)
        offset = headers[-1].next_offset
    copy.high_watermark = scene.log.high_watermark
    stable = scene.log.last_stable_offset
    assert copy.last_stable_offset == stable
    assert copy.aborted_between(0, stable) == scene.log.aborted_between(0, stable)


@pytest.mark.parametrize("snapshots", ["whole", "none"])
def test_a_changed_bit_changes_no_transaction(
    disk: VirtualDisk, clock: Clock, log: Log, snapshots: str
) -> None:
    """The log was closed cleanly, so no batch is checked. Its producers are read all the same from
    the batches: after the last snapshot, and where a marker may be undecided."""
    config = LogConfig()
    log = Log(disk, "t-0", config, clock)
    for producer_id, commits in ((1, True), (2, False)):
        send(log, producer_id, 0)
        end(log, producer_id, commit=commits)
    send(log, 3, 0)
    size = log.size
    send(log, 4, 0)  # the last batch says where the log ends
    log.close()
    files = {name: disk.read_file(f"t-0/{name}") or b"" for name in disk.list("t-0")}
    if snapshots == "none":
        files = {name: each for name, each in files.items() if not name.endswith("snapshot")}
    path = f"{0:020d}.log"

    def look(data: bytes) -> object:
        changed = VirtualDisk()
        for name, content in {**files, path: data}.items():
            changed.write_file(f"t-0/{name}", content)
        lost: list[bool] = []
        found = Log(
            changed,
            "t-0",
            config,
            clock,
            recovery_point=6,
            high_watermark=1,
            clean=True,
            changes=LogChanges(on_loss=lambda: lost.append(True)),
        )
        if lost:
            return "the damage was found"
        transactions = found.producers.transactions
        found.high_watermark = 6
        return (
            dict(transactions.first_offsets),
            spans(found, 0, 6),
            [(each.id, each.epoch, each.coordinator_epoch) for each in found.producers.describe()],
            found.last_stable_offset,
        )

    expected = look(files[path])
    for bit in range(8 * size):
        data = bytearray(files[path])
        data[bit // 8] ^= 1 << bit % 8
        found = look(bytes(data))
        assert found in (expected, "the damage was found"), f"bit {bit % 8} of byte {bit // 8}"
