"""The serializers and deserializers among a client's options."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.client.options import consumer_options, producer_options
from trimtab.client.serialization import take_deserializers, take_serializers
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import InContext

TAKE: dict[str, Callable[[dict[str, object]], Any]] = {
    "serializer": take_serializers,
    "deserializer": take_deserializers,
}


async def coroutine(data: Any) -> bytes:
    return b""


class Coroutine:
    async def __call__(self, data: Any) -> bytes:
        return b""


class Reversing:
    def serialize(self, topic: str, headers: Any, data: str) -> bytes:
        return f"{topic}{data[::-1]}".encode()

    def deserialize(self, topic: str, headers: Any, data: bytes) -> str:
        return data.decode().removeprefix(topic)[::-1]


@pytest.mark.parametrize("what", ["serializer", "deserializer"])
def test_functions_are_taken_as_they_are_in_both_spellings(what: str) -> None:
    given: dict[str, object] = {f"key.{what}": str, f"value_{what}": None, "acks": 1}
    given[f"key.{what}"] = json.loads
    assert TAKE[what](given) == (json.loads, None)
    assert given == {"acks": 1}
    assert TAKE[what]({f"value_{what}": json.dumps}) == (None, json.dumps)
    assert TAKE[what]({"acks": 1}) is None


def test_an_object_with_the_method_gets_topic_and_headers() -> None:
    both = take_serializers({"value_serializer": Reversing()})
    assert both is not None
    assert isinstance(both.value, InContext)
    assert both.value.convert("t", [], "abc") == b"tcba"
    read = take_deserializers({"value_deserializer": Reversing()})
    assert read is not None
    assert isinstance(read.value, InContext)
    assert read.value.convert("t", [], b"tcba") == "abc"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (7, "value.{}=7: is of type int; give {wanted}"),
        (coroutine, "is a coroutine function; give {wanted}"),
        (Coroutine(), "is a coroutine function; give {wanted}"),
        (Reversing, "is a class; make an object of it: Reversing(…)"),
    ],
    ids=["type", "coroutine", "coroutine object", "class"],
)
@pytest.mark.parametrize("what", ["serializer", "deserializer"])
def test_what_is_none_is_refused(what: str, given: object, why: str) -> None:
    wanted = {
        "serializer": "a function from an object to bytes, such as str.encode, or an object with"
        " serialize(topic, headers, data)",
        "deserializer": "a function from bytes to an object, such as json.loads, or an object with"
        " deserialize(topic, headers, data)",
    }[what]
    with pytest.raises(UsageError) as caught:
        TAKE[what]({f"value.{what}": given})
    assert why.format(what, wanted=wanted) in str(caught.value)


@pytest.mark.parametrize("what", ["serializer", "deserializer"])
def test_both_spellings_together_are_refused(what: str) -> None:
    with pytest.raises(UsageError, match=f"option value_{what} is given twice"):
        TAKE[what]({f"value.{what}": str, f"value_{what}": str})


def test_a_producers_options_have_its_serializers() -> None:
    _, custom, serializers = producer_options("a:1", {"value_serializer": str.encode})
    assert (custom, serializers) == (None, (None, str.encode))
    assert producer_options({"bootstrap.servers": "a:1", "key.serializer": str.encode}, {})[2] == (
        str.encode,
        None,
    )
    assert producer_options("a:1", {})[2] is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("org.apache.kafka.common.serialization.StringSerializer", "takes a function from an obj"),
        ("json.dumps", "takes a function from an object to bytes, such as str.encode, or an obj"),
    ],
)
def test_the_name_of_a_class_is_refused(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        producer_options("a:1", {"key.serializer": name})


def test_the_names_of_javas_serializers_of_bytes_ask_for_nothing() -> None:
    package = "org.apache.kafka.common.serialization"
    for name in ("ByteArraySerializer", "BytesSerializer"):
        assert producer_options("a:1", {"value.serializer": f"{package}.{name}"})[2] is None
    given = {"value.deserializer": f"{package}.ByteArrayDeserializer"}
    assert consumer_options("a:1", given)[1] is None
