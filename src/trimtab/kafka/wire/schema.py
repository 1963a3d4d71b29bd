"""Declares messages: one dataclass for all versions, checked when the class is created.

    @struct
    class FetchTopic:
        topic: string = field(versions="0-12", default="", ignorable=True)
        partitions: list[int32]

    @message(api_key=1, versions="4-18", flexible="12+")
    class FetchRequest(Request["FetchResponse"]):
        max_wait_ms: int32
        topics: list[FetchTopic]

The order of the fields is their order on the wire. A field without a default must be given. All
other properties have Kafka's names: `versions` (those that contain the field), `nullable_versions`,
`tag`, `tagged_versions`, `ignorable` (a version without the field drops its value instead of
refusing the message).

Source: the definitions under `common/message` in kafka-clients, whose rules are Kafka's
`MessageGenerator`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.types import BOOL, NO_VERSIONS, RECORDS, Versions, WireType

T = TypeVar("T")
Response = TypeVar("Response", covariant=True)

_ANY_VERSION = Versions.parse("0+")
_MISSING: Any = object()


class Request(Generic[Response]):
    """The base class of a request; names the class of its response, which follows in the same file.

    From it mypy knows the type of `await connection.request(FetchRequest(...))`.

    Attributes:
        api_key: the number of its API on the wire, from `@message`.
    """

    __slots__ = ()
    api_key: ClassVar[int]


def response_of(request: type[Request[T]]) -> type[T]:
    """The class of the response to these requests."""
    (base,) = request.__dict__["__orig_bases__"]
    (named,) = get_args(base)
    found: type[T] = vars(sys.modules[request.__module__])[named.__forward_arg__]
    return found


class Field(NamedTuple):
    """One declared field.

    Attributes:
        name: in snake_case.
        type: a primitive, or the schema of a nested struct.
        is_array: whether it is an array of `type`.
        versions: those that contain it.
        nullable_versions: those in which it may be None.
        tag: its number among the tagged fields, or None.
        tagged_versions: those in which it is a tagged field.
        default: its value if none is given or received; a class stands for a new instance.
        required: whether a caller must give it.
        ignorable: whether a version without the field drops its value instead of refusing it.
    """

    name: str
    type: WireType | Schema
    is_array: bool
    versions: Versions
    nullable_versions: Versions
    tag: int | None
    tagged_versions: Versions
    default: object
    required: bool
    ignorable: bool


class Schema(NamedTuple):
    """The declaration of one class, from its decorators.

    Attributes:
        cls: the class.
        fields: in the order of the wire.
        versions: the valid versions of a message; for a struct, those of its fields by default.
        flexible: the versions with compact lengths and tagged fields; a struct follows its message.
        api_key: the API a request or response belongs to, the type of a metadata record; None for
            a struct.
    """

    cls: type
    fields: tuple[Field, ...]
    versions: Versions
    flexible: Versions
    api_key: int | None

    @property
    def name(self) -> str:
        return self.cls.__name__


class _Declaration(NamedTuple):
    """The arguments of `field`."""

    versions: str | None = None
    nullable_versions: str | None = None
    tag: int | None = None
    tagged_versions: str | None = None
    ignorable: bool = False
    default: Any = _MISSING
    default_factory: Any = _MISSING


def field(
    *,
    versions: str | None = None,
    nullable_versions: str | None = None,
    tag: int | None = None,
    tagged_versions: str | None = None,
    ignorable: bool = False,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
) -> Any:
    """Declare a field's properties besides its type. `versions` defaults to the struct's."""
    return _Declaration(
        versions, nullable_versions, tag, tagged_versions, ignorable, default, default_factory
    )


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def struct(*, versions: str = "0+") -> Callable[[type[T]], type[T]]:
    """Declare a struct that messages nest; `versions` are those of its fields by default.

    Raises:
        UsageError: the declaration breaks a rule; says which.
    """
    return lambda cls: _declare(cls, Versions.parse(versions), None)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(
    *, api_key: int, versions: str, flexible: str | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a request, a response or a metadata record, valid in `versions`.

    Raises:
        UsageError: the declaration breaks a rule; says which.
    """

    def declare(cls: type[T]) -> type[T]:
        valid = Versions.parse(versions)
        declared = _declare(cls, _ANY_VERSION, api_key)
        made = schema(declared)._replace(
            versions=valid, flexible=Versions.parse(flexible) if flexible else NO_VERSIONS
        )
        for owner, owned_field, carried in _walk(made, valid):
            _check_in_message(owner, owned_field, carried, made)
        declared.__schema__ = made  # type: ignore[attr-defined]
        if issubclass(declared, Request):
            declared.api_key = api_key
        return declared

    return declare


def schema(cls: type) -> Schema:
    """The schema of a declared class.

    Raises:
        UsageError: the class is not a declared message or struct.
    """
    declared = cls.__dict__.get("__schema__")
    if declared is None:
        raise UsageError(f"{cls.__name__} is no message: declare it with @message or @struct")
    return declared  # type: ignore[no-any-return]


def _declare(cls: type[T], versions: Versions, api_key: int | None) -> type[T]:
    # Without `dataclasses`, which takes five times as long: a broker declares more than two hundred
    # messages before it can start, and needs `__init__` of only a few.
    namespace = dict(cls.__dict__)
    annotations: dict[str, object] = namespace.get("__annotations__", {})
    declarations = {}
    for name in annotations:
        given = namespace.pop(name, _MISSING)
        declarations[name] = (
            given if isinstance(given, _Declaration) else _Declaration(default=given)
        )
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    namespace |= {
        "__slots__": tuple(annotations),
        "__init__": _init,
        "__eq__": _equal,
        "__repr__": _represent,
        "__hash__": None,
        "__dataclass_fields__": _DATACLASS_FIELDS,
        "__declarations__": declarations,
    }
    made: Any = type(cls.__name__, cls.__bases__, namespace)
    fields = tuple(
        [
            _read_field(cls, name, annotation, declarations[name], versions)
            for name, annotation in annotations.items()
        ]
    )
    _check_tags(cls, fields)
    made.__schema__ = Schema(made, fields, versions, NO_VERSIONS, api_key)
    return cast("type[T]", made)


def _read_field(
    cls: type, name: str, annotation: object, declaration: _Declaration, versions: Versions
) -> Field:
    kind, is_array, optional = _read_annotation(cls, name, annotation)
    required = False
    default: object
    if declaration.default is not _MISSING:
        default = declaration.default
    elif declaration.default_factory is not _MISSING:
        default = declaration.default_factory
        if default is list:
            default = []
    else:
        required = True
        default = [] if is_array else kind.cls if isinstance(kind, Schema) else kind.zero
    text, nullable_text, tag, tagged_text = declaration[:4]
    made = Field(
        name,
        kind,
        is_array,
        Versions.parse(text) if text else versions,
        Versions.parse(nullable_text) if nullable_text else NO_VERSIONS,
        tag,
        Versions.parse(tagged_text) if tagged_text else NO_VERSIONS,
        default,
        required,
        declaration.ignorable,
    )
    _check_field(cls, made, optional)
    return made


def _read_annotation(
    cls: type, name: str, annotation: object
) -> tuple[WireType | Schema, bool, bool]:
    """The type, whether the field is an array of it, and whether it may be None."""
    is_array = optional = False
    if isinstance(annotation, str):
        text, scope = annotation, vars(sys.modules[cls.__module__])
        if optional := text.endswith(" | None"):
            text = text[:-7]
        if is_array := text.startswith("list[") and text.endswith("]"):
            text = text[5:-1]
        found = bool if text == "bool" else scope.get(text)
        if found is None:
            is_array = optional = False
            found = eval(annotation, scope)
        annotation = found
    if get_origin(annotation) in (Union, types.UnionType):
        optional = True
        choices = [each for each in get_args(annotation) if each is not type(None)]
        annotation = choices[0] if len(choices) == 1 else None
    if get_origin(annotation) is list:
        is_array = True
        annotation = get_args(annotation)[0]
    if annotation is bool:
        return BOOL, is_array, optional
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, WireType):
            return note, is_array, optional
    if isinstance(annotation, type) and "__schema__" in annotation.__dict__:
        return schema(annotation), is_array, optional
    raise UsageError(
        f"{cls.__name__}.{name}: {annotation!r} is no wire type: use trimtab.kafka.wire.types"
    )


def _check_field(cls: type, declared: Field, optional: bool) -> None:
    fault = ""
    if optional != bool(declared.nullable_versions):
        fault = "`| None` and nullable_versions go together: give both"
    elif (declared.tag is None) == bool(declared.tagged_versions):
        fault = "tag and tagged_versions go together: give both"
    elif declared.tag is not None and (declared.required or declared.type is RECORDS):
        fault = "a tagged field has a default and holds no records"
    elif not declared.versions.covers(declared.tagged_versions):
        fault = f"tagged in versions that lack it: {declared.tagged_versions}"
    elif not declared.required:
        if declared.default is None and not declared.nullable_versions.covers(declared.versions):
            fault = f"null by default, but not nullable in {declared.versions}"
        elif misfitting := misfit(declared, declared.default):
            fault = f"the default does not fit: {misfitting}"
    if fault:
        raise UsageError(f"{cls.__name__}.{declared.name}: {fault}")


def _check_tags(cls: type, fields: tuple[Field, ...]) -> None:
    tags = sorted([each.tag for each in fields if each.tag is not None])
    if tags != list(range(len(tags))):
        raise UsageError(f"{cls.__name__}: tags must count from 0 without gap or repeat: {tags}")


def _walk(owner: Schema, carried: Versions) -> Iterator[tuple[Schema, Field, Versions]]:
    """Every field below `owner`, with the versions in which its owner is on the wire."""
    for owned_field in owner.fields:
        yield owner, owned_field, carried
        if isinstance(owned_field.type, Schema):
            yield from _walk(owned_field.type, carried.common(owned_field.versions))


def _check_in_message(owner: Schema, declared: Field, carried: Versions, top: Schema) -> None:
    fault = ""
    if declared.versions != carried and not carried.common(declared.versions):
        fault = f"no version of {top.name} has it: {declared.versions}"
    elif declared.required and not declared.versions.covers(carried):
        fault = "not in every version, so it needs a default"
    elif declared.tag is not None and not top.flexible.covers(
        declared.tagged_versions.common(carried)
    ):
        fault = f"tagged in versions of {top.name} that are not flexible"
    if fault:
        raise UsageError(f"{owner.name}.{declared.name}: {fault}")


def misfit(declared: Field, value: object) -> str:
    """Why the field cannot have this value in any version; empty if it can in one."""
    if value is None:
        return "" if declared.nullable_versions or declared.type is RECORDS else "it is None"
    if declared.is_array:
        if not isinstance(value, list):
            return f"{value!r} is no list"
        return next(filter(None, (_element_misfit(declared.type, each) for each in value)), "")
    return _element_misfit(declared.type, value)


def _element_misfit(kind: WireType | Schema, value: object) -> str:
    if isinstance(kind, Schema):
        fits = value is kind.cls or isinstance(value, kind.cls)
        return "" if fits else f"{value!r} is no {kind.name}"
    if kind.code in tuple("bhHiIq"):
        if not isinstance(value, int):
            return f"{value!r} is no integer"
        bits = kind.size * 8
        low, high = (
            (0, 2**bits - 1) if kind.code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return "" if low <= value <= high else f"{value} is outside {low} to {high}"
    if kind.name == "string":
        if not isinstance(value, str):
            return f"{value!r} is no str"
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > 32767:
            return f"a string of {size} bytes is beyond 32767"
        lone = any("\ud800" <= each <= "\udfff" for each in value)
        return f"{value!r} holds a lone surrogate, which UTF-8 cannot carry" if lone else ""
    if kind.name in ("bytes", "records"):
        fits = isinstance(value, bytes | bytearray | memoryview)
        return "" if fits else f"{value!r} is not bytes-like"
    if kind.name == "uuid":
        fits = isinstance(value, bytes) and len(value) == 16
        return "" if fits else f"{value!r} is not 16 bytes"
    expected = (bool,) if kind is BOOL else (int, float)
    return "" if isinstance(value, expected) else f"{value!r} is no {kind.name}"


def _init(self: Any, *arguments: object, **given: object) -> None:
    """The `__init__` of a class until its first call, which generates the class's own."""
    cls = type(self)
    cls.__init__ = _write_init(cls)
    self.__init__(*arguments, **given)


def _write_init(cls: type) -> Callable[..., None]:
    """Generate a class's `__init__` as `dataclasses` does; all arguments are keyword-only."""
    scope: dict[str, Any] = {"missing": _MISSING}
    parameters, body = ["self"], ["    pass"]
    declarations: dict[str, _Declaration] = cls.__dict__["__declarations__"]
    if declarations:
        parameters.append("*")
    for name, declaration in declarations.items():
        value = name
        if declaration.default is not _MISSING:
            scope[f"default_{name}"] = declaration.default
            parameters.append(f"{name}=default_{name}")
        elif declaration.default_factory is not _MISSING:
            scope[f"make_{name}"] = declaration.default_factory
            parameters.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        else:
            parameters.append(name)
        body.append(f"    self.{name} = {value}")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(body), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


class _DataclassFields:
    """`__dataclass_fields__` for `dataclasses.replace`, created when it is first read."""

    def __get__(self, message: object, cls: type) -> object:
        import dataclasses

        names = [(name, object) for name in cls.__dict__["__declarations__"]]
        made = dataclasses.make_dataclass(cls.__name__, names, kw_only=True)
        return {each.name: each for each in dataclasses.fields(made)}


_DATACLASS_FIELDS = _DataclassFields()


def _equal(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    names = type(self).__slots__
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _represent(self: Any) -> str:
    """Like a dataclass's, without the fields that have their default."""
    shown = (
        f"{declared.name}={getattr(self, declared.name)!r}"
        for declared in schema(type(self)).fields
        if declared.required or not is_default(declared, getattr(self, declared.name))
    )
    return f"{type(self).__name__}({', '.join(shown)})"


def is_default(declared: Field, value: object) -> bool:
    """Whether `value` is the value that a decoder sets if the field is not on the wire."""
    if isinstance(declared.default, type):
        value_type = type(value)
        return value_type is declared.default and all(
            is_default(owned_field, getattr(value, owned_field.name))
            for owned_field in schema(value_type).fields
        )
    return bool(value == declared.default)
