"""The serializers and deserializers among a client's options.

Each is a function of the object or the bytes; or an object with `serialize` or `deserialize`, which
also gets topic and headers, as in Kafka and kafka-python; or one of confluent-kafka's, which gets
them as a `SerializationContext`. So confluent-kafka's Schema Registry serializers work as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, cast

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Deserializers, InContext, Serializers

Function = Callable[..., Any]
Conversion = Function | InContext


def take_serializers(named: dict[str, object]) -> Serializers | None:
    """Take a producer's serializers out of its options; None if there are none.

    Raises:
        UsageError: one is given twice, or is none of the above.
    """
    key, value = (_take("producer", named, part, "serialize") for part in ("key", "value"))
    return Serializers(key, value) if key or value else None


def take_deserializers(named: dict[str, object]) -> Deserializers | None:
    """`take_serializers` for a consumer."""
    key, value = (_take("consumer", named, part, "deserialize") for part in ("key", "value"))
    return Deserializers(key, value) if key or value else None


def _take(kind: str, named: dict[str, object], part: str, method: str) -> Conversion | None:
    """Take an option; the name of a Java class is left in, for the check of the other options."""
    found: Conversion | None = None
    for name in (f"{part}.{method}r", f"{part}_{method}r"):
        given = named.get(name)
        if given is None or not isinstance(given, str):
            named.pop(name, None)
        if given is None or isinstance(given, str):
            continue
        if found is not None:
            raise UsageError(f"{kind} option {name} is given twice: keep one of its spellings")
        found = _checked(name, given, part, method)
    return found


def _checked(name: str, given: object, part: str, method: str) -> Conversion:
    in_context: object = getattr(given, method, None)
    called = in_context if callable(in_context) else given
    if isinstance(given, type) and called is in_context:
        wrong = f"is a class; make an object of it: {given.__name__}(…)"
    elif not callable(called):
        wrong = f"is of type {type(given).__name__}; give {_WANTED[method]}"
    elif iscoroutinefunction(called) or iscoroutinefunction(type(called).__call__):
        wrong = f"is a coroutine function; give {_WANTED[method]}"
    elif called is in_context:
        return InContext(called)
    else:
        confluent = sys.modules.get("confluent_kafka.serialization")
        if confluent is not None and isinstance(
            given, (confluent.Serializer, confluent.Deserializer)
        ):
            return _of_confluent(
                given, confluent.SerializationContext, confluent.MessageField(part)
            )
        return cast(Function, called)
    raise UsageError(f"{name}={given!r}: {wrong}")


def _of_confluent(given: Function, context: Function, field: object) -> InContext:
    def convert(topic: str, headers: Any, data: Any) -> Any:
        try:
            return given(data, context(topic, field, headers))
        except Exception as error:
            # Of a registry that cannot be reached the HTTP client says only "Connection refused".
            if (request := vars(error).get("_request")) is None:
                raise
            raise ConnectionError(f"{request.method} {request.url}: {error}") from error

    return InContext(convert)


_WANTED = {
    "serialize": "a function from an object to bytes, such as str.encode, or an object with"
    " serialize(topic, headers, data)",
    "deserialize": "a function from bytes to an object, such as json.loads, or an object with"
    " deserialize(topic, headers, data)",
}
