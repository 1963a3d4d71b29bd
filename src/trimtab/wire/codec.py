"""Messages to bytes and back, by functions written for one class, one version and one direction.

The first use of a (class, version, direction) writes a flat Python function from the class's
schema: neighbouring fields of fixed width, with the length prefix that follows them, share one
`struct.Struct`; nested structs and arrays are inlined; defaults are constants. Its source is in
`linecache`, so a traceback shows the line that failed.

    encode(message, version)       message ──▶ bytes
    encode_parts(message, version) message ──▶ [bytes, records, bytes, …]  large records uncopied
    decode(cls, version, buffer)   bytes ──▶ message                       records are views
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from trimtab.errors import CorruptData, UsageError
from trimtab.wire.schema import Field, Schema, is_default, misfit, schema
from trimtab.wire.types import NO_VERSIONS, BytesLike, WireType

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE_RECORDS_BYTES = 1024
"""`encode_parts` copies records up to this size: a part of its own costs more than the copy."""

M = TypeVar("M")
Encoder = Callable[[Any, list[int]], list[BytesLike]]
Decoder = Callable[[memoryview, int, int], tuple[Any, int]]

_encoders: dict[tuple[type, int], Encoder] = {}
_decoders: dict[tuple[type, int], Decoder] = {}


def encode(message: object, version: int) -> bytes:
    """The body of `message` in `version`.

    Raises:
        UsageError: the class has no such version; a value does not fit its type; or a value that is
            not the default is in a field which the version lacks and which is not ignorable.
    """
    try:
        return b"".join(_encoder(type(message), version)(message, []))
    except _FAULTS as error:
        raise _refusal(message, version, error) from error


def encode_parts(message: object, version: int) -> list[BytesLike]:
    """As `encode`, in parts for `transport.writelines`: records above 1 KiB are parts of their own,
    not copied, so they must stay as they are until they are sent.

    Raises:
        UsageError: as `encode`.
    """
    large: list[int] = []
    try:
        chunks = _encoder(type(message), version)(message, large)
        if not large:
            return [b"".join(chunks)]
        parts: list[BytesLike] = []
        start = 0
        for index in large:
            parts.append(b"".join(chunks[start:index]))
            parts.append(chunks[index])
            start = index + 1
        parts.append(b"".join(chunks[start:]))
    except _FAULTS as error:
        raise _refusal(message, version, error) from error
    return parts


def decode(
    cls: type[M], version: int, buffer: BytesLike, position: int = 0, allow_rest: bool = False
) -> M:
    """The message of `cls` that fills `buffer` from `position` to its end.

    `records` are views into `buffer`: it must not change while they live.

    Args:
        allow_rest: whether bytes may follow. Kafka does not look at what follows a request's last
            field, and librdkafka 2.16 does leave three bytes behind there.

    Raises:
        CorruptData: the bytes are no such message, or more follow it where none may.
        UsageError: the class has no such version.
    """
    view = memoryview(buffer)
    size = len(view)
    try:
        decoder = _decoders[cls, version]
    except KeyError:
        decoder = _decoders[cls, version] = _DecoderSource(schema(cls), version).function()
    try:
        message, end = decoder(view, position, size)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptData(
            f"{cls.__name__} v{version} of {size - position} bytes: {error}"
        ) from error
    if end != size and not allow_rest:
        raise CorruptData(f"{cls.__name__} v{version}: {size - end} bytes too many")
    return message  # type: ignore[no-any-return]


def write_unsigned_varint(value: int) -> bytes:
    """`value` (0 to 2**32 - 1) in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def read_unsigned_varint(buffer: BytesLike, position: int) -> tuple[int, int]:
    """The value at `position`, and the position after it.

    Raises:
        CorruptData: it is longer than five bytes, or beyond 2**32 - 1.
        IndexError: the buffer ends within it.
    """
    return _finish_varint(buffer, position + 1, buffer[position])


def _finish_varint(buffer: BytesLike, position: int, value: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, `value`, has been read."""
    shift = 7
    while value >> shift:
        if shift > 28:
            raise CorruptData("a varint of more than 32 bits")
        group = buffer[position]
        position += 1
        value = value & (1 << shift) - 1 | group << shift
        shift += 7
    if value >> 32:
        raise CorruptData("a varint of more than 32 bits")
    return value, position


def _encoder(cls: type, version: int) -> Encoder:
    try:
        return _encoders[cls, version]
    except KeyError:
        _encoders[cls, version] = _EncoderSource(schema(cls), version).function()
        return _encoders[cls, version]


class _MisfitError(Exception):
    """What generated code raises; `_explain` then finds the field."""


def _misfit() -> NoReturn:
    raise _MisfitError("a value does not fit")


# What an encoder raises when a value does not fit.
_FAULTS = (
    _MisfitError,
    struct.error,
    TypeError,
    AttributeError,
    OverflowError,
    UnicodeEncodeError,
)


def _refusal(message: object, version: int, error: Exception) -> UsageError:
    owner = schema(type(message))
    path = f"{owner.name} v{version}: "
    return UsageError(_explain(owner, message, version, path) or f"{path}{error}")


def _explain(owner: Schema, message: Any, version: int, path: str) -> str:
    """Which field cannot be encoded and why; empty if all can."""
    for each in owner.fields:
        value = getattr(message, each.name)
        name = path + each.name
        if not each.versions.includes(version):
            if not each.ignorable and not is_default(each, value):
                return f"{name} = {value!r}: the version lacks it, leave it at its default"
            continue
        fault = misfit(each, value)
        if value is None and not fault and not each.nullable_versions.includes(version):
            fault = "it is None"
        if fault:
            return f"{name}: {fault}"
        if isinstance(each.type, Schema) and value is not None:
            for index, element in enumerate(value if each.is_array else [value]):
                place = f"{name}[{index}]." if each.is_array else f"{name}."
                if fault := _explain(each.type, element, version, place):
                    return fault
    return ""


def _corrupt(name: str, length: int) -> NoReturn:
    raise CorruptData(f"{name} has the length {length}, which cannot be")


def _skip_tags(buffer: memoryview, position: int, size: int, count: int) -> int:
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        length, position = read_unsigned_varint(buffer, position)
        position += length
        if position > size:
            _corrupt("an unknown tagged field", length)
    return position


_SHORT_VARINTS = tuple(bytes([value]) for value in range(128))


def _string_varint(length: int) -> bytes:
    """The prefix of a compact string too long for one byte."""
    if length > 32768:
        _misfit()
    return write_unsigned_varint(length)


@cache
def _packer(layout: str) -> Callable[..., bytes]:
    return struct.Struct(layout).pack


@cache
def _unpacker(layout: str) -> Callable[..., tuple[Any, ...]]:
    return struct.Struct(layout).unpack_from


class _Source:
    """The text of one function while it is written.

    `run` holds the fixed-width values, or targets, that the next flush packs or unpacks at once.
    """

    verb = ""

    def __init__(self, owner: Schema, version: int) -> None:
        if not owner.versions.includes(version):
            raise UsageError(f"{owner.name} has no version {version}, only {owner.versions}")
        self.owner = owner
        self.version = version
        self.name = f"{self.verb}_{owner.name}_v{version}"
        self.flexible = owner.flexible.includes(version)
        self.lines: list[str] = []
        self.margin = ""
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str]] = []
        self.locals = 0

    def write_body(self) -> None:
        raise NotImplementedError

    def function(self) -> Any:
        """Write, compile and return the function."""
        self.write_body()
        filename = f"<trimtab {self.name}>"
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, filename, "exec"), self.names)
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        return self.names[self.name]

    def line(self, text: str) -> None:
        self.lines.append(self.margin + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header)
        self.margin += "    "
        yield
        self.margin = self.margin[:-4]

    def local(self, stem: str) -> str:
        self.locals += 1
        return f"{stem}{self.locals}"

    def constant(self, stem: str, value: Any) -> str:
        """A global of the function; the same name for the same value."""
        for name, known in self.names.items():
            if known is value and name.startswith(stem):
                return name
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def has(self, declared: Field) -> bool:
        return declared.versions.includes(self.version)

    def is_tagged(self, declared: Field) -> bool:
        return declared.tagged_versions.includes(self.version)

    def is_nullable(self, declared: Field) -> bool:
        return declared.nullable_versions.includes(self.version)

    def length_code(self, declared: Field) -> str:
        """The format of an inflexible length: 16 bits before a string, 32 before all else."""
        is_string = isinstance(declared.type, WireType) and declared.type.name == "string"
        return "h" if is_string and not declared.is_array else "i"

    def tagged_fields(self, owner: Schema) -> list[Field]:
        tagged = [each for each in owner.fields if self.is_tagged(each)]
        return sorted(tagged, key=lambda each: each.tag or 0)


class _EncoderSource(_Source):
    verb = "encode"

    def __init__(self, owner: Schema, version: int) -> None:
        super().__init__(owner, version)
        self.write = "write"
        self.names |= {
            "short_varints": _SHORT_VARINTS,
            "varint": write_unsigned_varint,
            "string_varint": _string_varint,
            "misfit": _misfit,
            "pack": struct.pack,
        }

    def write_body(self) -> None:
        with self.block(f"def {self.name}(m, large):"):
            self.line("chunks = []")
            self.line("write = chunks.append")
            self.structure(self.owner, "m")
            self.flush()
            self.line("return chunks")

    def structure(self, owner: Schema, variable: str) -> None:
        for each in owner.fields:
            value = f"{variable}.{each.name}"
            if not self.has(each):
                if not each.ignorable:
                    with self.block(f"if {self.differs(each, value)}:"):
                        self.line("misfit()")
            elif not self.is_tagged(each):
                self.value(each, value)
        if self.flexible:
            self.tags(self.tagged_fields(owner), variable)

    def differs(self, declared: Field, value: str) -> str:
        """An expression: whether the value is not the default."""
        if declared.default is None:
            return f"{value} is not None"
        if isinstance(declared.default, type):
            assert isinstance(declared.type, Schema)
            inner = (self.differs(each, f"{value}.{each.name}") for each in declared.type.fields)
            return f"({' or '.join(inner)})"
        return f"{value} != {declared.default!r}"

    def value(self, declared: Field, value: str) -> None:
        if declared.is_array:
            self.array(declared, value)
        elif isinstance(declared.type, Schema):
            self.nested(declared, declared.type, value)
        elif declared.type.code:
            self.fixed(declared.type, value)
        else:
            self.variable(declared, declared.type, value)

    def fixed(self, kind: WireType, value: str) -> None:
        if kind.name == "uuid":
            # struct would pad or cut one of another length in silence.
            with self.block(f"if len({value}) != 16:"):
                self.line("misfit()")
        self.run.append((kind.code, value))

    def variable(self, declared: Field, kind: WireType, value: str) -> None:
        data, length = self.local("data"), self.local("length")
        encoded = f"{value}.encode()" if kind.name == "string" else value
        extra = " + 1" if self.flexible else ""
        if self.is_nullable(declared):
            self.line(f"{data} = {value}")
            with self.block(f"if {data} is None:"):
                self.line(f"{length} = {0 if self.flexible else -1}")
            with self.block("else:"):
                if kind.name == "string":
                    self.line(f"{data} = {data}.encode()")
                self.line(f"{length} = len({data}){extra}")
        else:
            self.line(f"{data} = {encoded}")
            self.line(f"{length} = len({data}){extra}")
        self.length(declared, length)
        if kind.name == "records":
            assert self.write == "write", "large parts are counted in the outermost chunks"
            with self.block(f"if {length} > {LARGE_RECORDS_BYTES}:"):
                self.line("large.append(len(chunks))")
        if self.is_nullable(declared):
            with self.block(f"if {data}:"):
                self.line(f"{self.write}({data})")
        else:
            self.line(f"{self.write}({data})")

    def length(self, declared: Field, length: str) -> None:
        """Write the run, and a length prefix with it."""
        if not self.flexible:
            self.run.append((self.length_code(declared), length))
            self.flush()
            return
        is_string = self.length_code(declared) == "h"
        long = f"{self.write}({'string_varint' if is_string else 'varint'}({length}))"
        if not self.run:
            short = f"{self.write}(short_varints[{length}])"
        else:
            short = self.packed([*self.run, ("B", length)])
            long = f"{self.packed(self.run)}; {long}"
        with self.block(f"if {length} < 128:"):
            self.line(short)
        with self.block("else:"):
            self.line(long)
        self.run = []

    def array(self, declared: Field, value: str) -> None:
        items, length, item = self.local("items"), self.local("length"), self.local("item")
        self.line(f"{items} = {value}")
        extra = " + 1" if self.flexible else ""
        if self.is_nullable(declared):
            null = 0 if self.flexible else -1
            self.line(f"{length} = {null} if {items} is None else len({items}){extra}")
        else:
            self.line(f"{length} = len({items}){extra}")
        self.length(declared, length)
        with self.block(f"if {items}:"):
            if isinstance(declared.type, WireType) and declared.type.code in tuple("bhHiIqd"):
                code = declared.type.code
                self.line(f'{self.write}(pack(f">{{len({items})}}{code}", *{items}))')
                return
            with self.block(f"for {item} in {items}:"):
                if isinstance(declared.type, Schema):
                    self.structure(declared.type, item)
                else:
                    element = declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
                    self.value(element, item)
                self.flush()

    def nested(self, declared: Field, kind: Schema, value: str) -> None:
        inner = self.local("inner")
        self.line(f"{inner} = {value}")
        if not self.is_nullable(declared):
            self.structure(kind, inner)
            return
        self.flush()
        with self.block(f"if {inner} is None:"):
            self.line(f'{self.write}(b"\\xff")')
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.structure(kind, inner)
            self.flush()

    def tags(self, tagged: list[Field], variable: str) -> None:
        if not tagged:
            self.run.append(("x", ""))
            return
        # The tagged values are written aside first: their count and sizes go before them.
        outer_run, outer_write = self.run, self.write
        tags, count = self.local("tags"), self.local("count")
        self.line(f"{tags} = []")
        self.line(f"{count} = 0")
        for each in tagged:
            value, data = f"{variable}.{each.name}", self.local("tagged")
            with self.block(f"if {self.differs(each, value)}:"):
                self.line(f"{data} = []")
                self.write, self.run = f"{data}.append", []
                self.value(each, value)
                self.flush()
                self.line(f'{data} = b"".join({data})')
                prefix = write_unsigned_varint(each.tag or 0)
                self.line(f"{tags} += ({prefix!r}, varint(len({data})), {data})")
                self.line(f"{count} += 1")
        self.run, self.write = outer_run, outer_write
        self.run.append(("B", count))
        self.flush()
        with self.block(f"if {count}:"):
            target = "chunks" if self.write == "write" else self.write.removesuffix(".append")
            self.line(f"{target} += {tags}")

    def flush(self) -> None:
        if self.run:
            self.line(self.packed(self.run))
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        values = ", ".join(value for _, value in run if value)
        if not values:
            return f"{self.write}({bytes(len(codes))!r})"
        if codes == "B":
            return f"{self.write}(short_varints[{values}])"
        packer = self.constant("pack", _packer(">" + codes))
        return f"{self.write}({packer}({values}))"


class _DecoderSource(_Source):
    verb = "decode"

    def __init__(self, owner: Schema, version: int) -> None:
        super().__init__(owner, version)
        self.names |= {
            "finish_varint": _finish_varint,
            "skip_tags": _skip_tags,
            "corrupt": _corrupt,
            "unpack_from": struct.unpack_from,
            "new": object.__new__,
        }

    def write_body(self) -> None:
        with self.block(f"def {self.name}(b, p, size):"):
            made = self.structure(self.owner)
            self.flush()
            self.line(f"return {made}, p")

    def structure(self, owner: Schema) -> str:
        """Write how an instance is read; return its variable. The run may be left pending."""
        made = self.local("made")
        # Instances are filled slot by slot: that is half the time of calling the class.
        self.line(f"{made} = new({self.constant(owner.name, owner.cls)})")
        for each in owner.fields:
            target = f"{made}.{each.name}"
            if not self.has(each) or self.is_tagged(each):
                self.line(f"{target} = {self.default(each)}")
            else:
                self.value(each, target, f"{owner.name}.{each.name}")
        if self.flexible:
            self.tags(owner, made)
        return made

    def default(self, declared: Field) -> str:
        if isinstance(declared.default, type):
            return self.constant(declared.default.__name__, declared.default) + "()"
        return repr(declared.default)

    def value(self, declared: Field, target: str, subject: str) -> None:
        if declared.is_array:
            self.array(declared, target, subject)
        elif isinstance(declared.type, Schema):
            self.nested(declared, declared.type, target, subject)
        elif declared.type.code:
            self.run.append((declared.type.code, target))
        else:
            self.variable(declared, declared.type, target, subject)

    def length(self, declared: Field) -> str:
        """Write how a length is read, with the run before it; return its variable."""
        length = self.local("length")
        if self.flexible:
            self.varint(length)
        else:
            self.run.append((self.length_code(declared), length))
            self.flush()
        return length

    def varint(self, variable: str) -> None:
        self.run.append(("B", variable))
        self.flush()
        with self.block(f"if {variable} > 127:"):
            self.line(f"{variable}, p = finish_varint(b, p, {variable})")

    @contextmanager
    def unless_null(self, declared: Field, length: str, target: str) -> Iterator[None]:
        if not self.is_nullable(declared):
            yield
            return
        with self.block(f"if {length} == {0 if self.flexible else -1}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def variable(self, declared: Field, kind: WireType, target: str, subject: str) -> None:
        length = self.length(declared)
        with self.unless_null(declared, length, target):
            end = self.local("end")
            if self.flexible:
                self.line(f"{end} = p + {length} - 1")
                longest = f" or {length} > 32768" if kind.name == "string" else ""
                fault = f"{length} < 1 or {end} > size{longest}"
            else:
                self.line(f"{end} = p + {length}")
                fault = f"{length} < 0 or {end} > size"
            with self.block(f"if {fault}:"):
                self.line(f"corrupt({subject!r}, {length}{' - 1' if self.flexible else ''})")
            taken = f"b[p:{end}]"
            if kind.name == "string":
                taken = f'str({taken}, "utf-8")'
            elif kind.name == "bytes":
                taken = f"bytes({taken})"
            self.line(f"{target} = {taken}")
            self.line(f"p = {end}")

    def array(self, declared: Field, target: str, subject: str) -> None:
        length = self.length(declared)
        with self.unless_null(declared, length, target):
            if self.flexible:
                self.line(f"{length} -= 1")
            # Before anything is made: no count may promise more than the bytes that are left.
            least = self.least_size(
                declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
            )
            with self.block(f"if not 0 <= {length} * {least} <= size - p:"):
                self.line(f"corrupt({subject!r}, {length})")
            if isinstance(declared.type, WireType) and declared.type.code in tuple("bhHiIqd"):
                code = f'f">{{{length}}}{declared.type.code}"'
                self.line(f"{target} = list(unpack_from({code}, b, p))")
                self.line(f"p += {length} * {least}")
                return
            items, item = self.local("items"), self.local("item")
            self.line(f"{target} = {items} = []")
            with self.block(f"for _ in range({length}):"):
                if isinstance(declared.type, Schema):
                    made = self.structure(declared.type)
                    self.flush()
                    self.line(f"{items}.append({made})")
                else:
                    element = declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
                    self.value(element, item, subject)
                    self.flush()
                    self.line(f"{items}.append({item})")

    def nested(self, declared: Field, kind: Schema, target: str, subject: str) -> None:
        if not self.is_nullable(declared):
            self.line(f"{target} = {self.structure(kind)}")
            return
        marker = self.local("marker")
        self.run.append(("b", marker))
        self.flush()
        with self.block(f"if {marker} == -1:"):
            self.line(f"{target} = None")
        with self.block(f"elif {marker} == 1:"):
            made = self.structure(kind)
            self.flush()
            self.line(f"{target} = {made}")
        with self.block("else:"):
            self.line(f"corrupt({subject!r}, {marker})")

    def tags(self, owner: Schema, made: str) -> None:
        count = self.local("count")
        tagged = self.tagged_fields(owner)
        self.varint(count)
        with self.block(f"if {count}:"):
            if not tagged:
                self.line(f"p = skip_tags(b, p, size, {count})")
                return
            tag, length, end = self.local("tag"), self.local("length"), self.local("end")
            with self.block(f"for _ in range({count}):"):
                self.varint(tag)
                self.varint(length)
                self.line(f"{end} = p + {length}")
                with self.block(f"if {end} > size:"):
                    self.line(f"corrupt({owner.name + ' tagged field'!r}, {length})")
                for each in tagged:
                    subject = f"{owner.name}.{each.name}"
                    with self.block(f"if {tag} == {each.tag}:"):
                        self.value(each, f"{made}.{each.name}", subject)
                        self.flush()
                        with self.block(f"if p != {end}:"):
                            self.line(f"corrupt({subject!r}, {length})")
                self.line(f"p = {end}")

    def least_size(self, declared: Field) -> int:
        """The fewest bytes that a value can take."""
        if declared.is_array or (isinstance(declared.type, WireType) and not declared.type.code):
            return 1 if self.flexible else struct.calcsize(">" + self.length_code(declared))
        if isinstance(declared.type, WireType):
            return declared.type.size
        if self.is_nullable(declared):
            return 1
        return int(self.flexible) + sum(
            self.least_size(each)
            for each in declared.type.fields
            if self.has(each) and not self.is_tagged(each)
        )

    def flush(self) -> None:
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if codes == "B":
            self.line(f"{targets} = b[p]")
        else:
            comma = "," if len(self.run) == 1 else ""
            unpacker = self.constant("unpack", _unpacker(">" + codes))
            self.line(f"{targets}{comma} = {unpacker}(b, p)")
        self.line(f"p += {struct.calcsize('>' + codes)}")
        self.run = []
