"""`send`, compiled: its arguments, its waits, and its bound for a record's size."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import pytest

from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import NotSerialized, UsageError
from trimtab.kafka.records import InContext, Serializers
from trimtab.kafka.wire.batch_cy import HEADER_BYTES

Make = Callable[..., Any]


@pytest.fixture
def form(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.client.accumulator.intake_cy")


@pytest.fixture
def accumulator(in_form: Callable[[str], ModuleType], make_view: Callable[..., TopicView]) -> Any:
    made = in_form("trimtab.client.accumulator.accumulator_cy").Accumulator(
        batch_size=1000,
        buffer_memory=1 << 20,
        max_request_size=1 << 20,
        compression=0,
        ignores_keys=False,
        make_partitioner=lambda: BuiltInPartitioner(BuiltInOptions(1000, False), Random(3)),
        now=lambda: 100.0,
        wall_clock=lambda: 1_700_000_000.25,
        lock=threading.RLock(),
        wake=lambda: None,
        on_callback_error=lambda error: pytest.fail(str(error)),
    )
    made.update_topic(make_view((0,)))
    # The intake uses only the accumulator's base class `Placement`.
    assert isinstance(made, in_form("trimtab.client.accumulator.placement_cy").Placement)
    return made


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_send_takes_whatever_is_bytes(form: ModuleType, accumulator: Any, kind: Any) -> None:
    intake = form.Intake(accumulator)
    intake.send("topic", kind(b"value"), kind(b"key"), [("h", kind(b"1"))], 0, 7)
    intake.send("topic", key=kind(b"key"), timestamp=8)
    first, second = accumulator.oldest().builder.records()
    assert (first.value, first.key, first.headers) == (b"value", b"key", [("h", b"1")])
    assert (second.value, second.key, second.timestamp) == (None, b"key", 8)


def test_a_send_that_must_wait_is_left_to_the_producer(form: ModuleType, accumulator: Any) -> None:
    record = ("elsewhere", b"v", b"k", None, 3, 9, print)

    class Face(form.Intake):  # type: ignore[name-defined, misc]
        def _send_when_possible(self, *given: Any) -> Any:
            return given

    class AsyncFace(form.AsyncIntake):  # type: ignore[name-defined, misc]
        async def _send_when_possible(self, *given: Any) -> Any:
            return given

    assert Face(accumulator).send(*record) == record
    assert asyncio.run(AsyncFace(accumulator).send(*record)) == record


def test_a_producer_without_init_raises_an_error(form: ModuleType) -> None:
    def run(face: Any) -> None:
        sent = face.send("topic", b"x")
        asyncio.run(sent)

    for kind in (form.Intake, form.AsyncIntake):

        class Forgetful(kind):  # type: ignore[valid-type, misc]
            def __init__(self) -> None:
                pass

        # Compiled it is a null pointer otherwise.
        with pytest.raises((UsageError, AttributeError), match=r"__init__ first|_placement"):
            run(Forgetful())


def test_send_lets_the_event_loop_run_after_a_number_of_bytes(
    form: ModuleType, accumulator: Any
) -> None:
    turns: list[int] = []

    async def run() -> None:
        asyncio.get_running_loop().call_soon(turns.append, 0)
        intake = form.AsyncIntake(accumulator)
        for number in range(400):
            await intake.send("topic", b"x" * 900)
            if turns:
                turns.append(number)
                return

    asyncio.run(run())
    assert turns[0] == 0
    assert 262_144 // 1000 <= turns[1] < 310


def test_send_lets_the_sender_run_after_a_number_of_bytes_and_not_before(
    form: ModuleType, accumulator: Any
) -> None:
    handed_over: list[int] = []

    class Face(form.Intake):  # type: ignore[name-defined, misc]
        def _hand_over(self) -> None:
            handed_over.append(number)

    face = Face(accumulator)
    for number in range(800):
        face.send("topic", b"x" * 900)
        if number == 600:
            accumulator.take_changed()  # the sender has seen it all
    assert len(handed_over) == 2
    assert 262_144 // 1000 <= handed_over[0] < 310
    assert handed_over[1] < 600


def test_the_bound_of_a_record_is_never_below_its_batch(
    in_form: Callable[[str], ModuleType],
) -> None:
    bound = in_form("trimtab.client.accumulator.outgoing_cy").bound
    builders = in_form("trimtab.kafka.wire.batch_cy")
    random = Random(5)
    for _ in range(500):
        value = None if random.random() < 0.1 else random.randbytes(random.choice([0, 9, 200]))
        key = None if random.random() < 0.5 else random.randbytes(random.choice([0, 3, 130]))
        headers = [
            ("é" * random.randrange(9), None if random.random() < 0.3 else b"x" * 70)
            for _ in range(random.randrange(4))
        ]
        builder = builders.BatchBuilder(1)
        builder.append(2**62, key, value, headers)
        assert builder.size <= bound(value, key, headers)
    assert bound(None, None, None) < HEADER_BYTES + 40
    wrong: Any
    for *wrong, field in ((7, None, "value"), ("text", None, "value"), (b"", 7, "key")):
        with pytest.raises(UsageError, match=rf"record {field} is of type"):
            bound(*wrong, None)


# -- serializers


def number(data: Any) -> bytes:
    return b"%d" % data


def send(form: ModuleType, accumulator: Any, serializers: Serializers, **record: Any) -> None:
    """Send one record with each of the two kinds of `send`."""
    form.Intake(accumulator, serializers).send("topic", **record)
    asyncio.run(form.AsyncIntake(accumulator, serializers).send("topic", **record))


def test_serializers_make_bytes_of_key_and_value(form: ModuleType, accumulator: Any) -> None:
    send(form, accumulator, Serializers(str.encode, number), value=7, key="k", headers=[("h", b"")])
    for record in accumulator.oldest().builder.records():
        assert (record.key, record.value, record.headers) == (b"k", b"7", [("h", b"")])


def test_a_part_without_serializer_stays_bytes(form: ModuleType, accumulator: Any) -> None:
    send(form, accumulator, Serializers(None, number), value=7, key=b"k")
    send(form, accumulator, Serializers(str.encode, None), value=b"7", key="k")
    records = accumulator.oldest().builder.records()
    assert [(record.key, record.value) for record in records] == [(b"k", b"7")] * 4


def test_no_serializer_gets_a_none(form: ModuleType, accumulator: Any) -> None:
    refuse = Serializers(pytest.fail, InContext(lambda *given: pytest.fail(str(given))))
    send(form, accumulator, refuse)
    for record in accumulator.oldest().builder.records():
        assert (record.key, record.value) == (None, None)


def test_a_serializer_may_make_a_null(form: ModuleType, accumulator: Any) -> None:
    send(form, accumulator, Serializers(None, lambda data: None), value="gone")
    for record in accumulator.oldest().builder.records():
        assert record.value is None


def test_a_serializer_gets_the_topic_and_may_add_headers(
    form: ModuleType, accumulator: Any
) -> None:
    def convert(topic: str, headers: list[Any], data: str) -> bytes:
        headers.append((data, topic.encode()))
        return data.encode()

    theirs = (("h", b"1"),)
    both = Serializers(InContext(convert), InContext(convert))
    send(form, accumulator, both, value="v", key="k", headers=theirs)
    send(form, accumulator, Serializers(None, InContext(convert)), value="v")
    headers = [record.headers for record in accumulator.oldest().builder.records()]
    assert headers[:2] == [[("h", b"1"), ("k", b"topic"), ("v", b"topic")]] * 2
    assert headers[2:] == [[("v", b"topic")]] * 2
    assert theirs == (("h", b"1"),), "the caller's own are left as they are"


def test_a_serializer_cannot_change_the_callers_headers(form: ModuleType, accumulator: Any) -> None:
    theirs = [("h", b"1")]
    change = Serializers(InContext(lambda topic, headers, data: headers.clear() or b"k"), None)
    send(form, accumulator, change, key="k", headers=theirs)
    assert theirs == [("h", b"1")]
    assert not any(record.headers for record in accumulator.oldest().builder.records())


@pytest.mark.parametrize("part", ["key", "value"])
def test_an_error_of_a_serializer_reaches_the_caller_and_nothing_is_sent(
    form: ModuleType, accumulator: Any, part: str
) -> None:
    serializers = Serializers(None, None)._replace(**{part: number})
    intakes = form.Intake(accumulator, serializers), form.AsyncIntake(accumulator, serializers)
    why = (
        rf"topic topic: the serializer of the {part} raised TypeError: .*; the record was not sent"
    )
    for run in (
        intakes[0].send,
        lambda *given, **named: asyncio.run(intakes[1].send(*given, **named)),
    ):
        with pytest.raises(NotSerialized, match=why) as caught:
            run("topic", **{part: "seven"})
        error = caught.value
        assert (error.topic, error.part) == ("topic", part)
        assert isinstance(error.__cause__, TypeError)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert accumulator.unacknowledged == 0


@pytest.mark.parametrize("made", ["text", 7, asyncio.sleep], ids=["str", "int", "function"])
def test_what_a_serializer_returns_must_be_bytes(
    form: ModuleType, accumulator: Any, made: Any
) -> None:
    intake = form.Intake(accumulator, Serializers(None, lambda data: made))
    with pytest.raises(NotSerialized, match=rf"returned {type(made).__name__}, not bytes"):
        intake.send("topic", "v")


def test_ctrl_c_in_a_serializer_is_no_error_of_it(form: ModuleType, accumulator: Any) -> None:
    def interrupt(data: object) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        form.Intake(accumulator, Serializers(None, interrupt)).send("topic", "v")
    assert accumulator.unacknowledged == 0


def test_wrong_arguments_are_found_before_a_serializer_runs(
    form: ModuleType, accumulator: Any
) -> None:
    never = Serializers(None, InContext(lambda *given: pytest.fail("it was called")))
    with pytest.raises(UsageError, match="topic=7"):
        form.Intake(accumulator, never).send(7, "v")
    with pytest.raises(UsageError, match="headers are of type dict"):
        form.Intake(accumulator, never).send("topic", "v", headers={"h": b""})


def test_a_send_that_must_wait_is_left_to_the_producer_in_bytes(
    form: ModuleType, accumulator: Any
) -> None:
    class Face(form.Intake):  # type: ignore[name-defined, misc]
        def _send_when_possible(self, *given: Any) -> Any:
            return given

    found = Face(accumulator, Serializers(str.encode, number)).send("elsewhere", 7, "k")
    assert found[:3] == ("elsewhere", b"7", b"k")
