"""Generates the source of the codec's functions for one class, version and direction.

Each function has two forms. The plain one does its work at once. The other is a generator that
yields after every `TURN_ELEMENTS` elements, so that other tasks can run. Both subtract the objects
that they create from a budget, and call `exceed` when it is used up.

Long because the two directions, which must agree on every type, stand beside each other.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NoReturn

from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.schema import Field, Schema
from trimtab.kafka.wire.types import NO_VERSIONS, BytesLike, WireType
from trimtab.kafka.wire.varint import finish_varint, read_unsigned_varint, write_unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE_RECORDS_BYTES = 1024
"""`encode_parts` copies records up to this size: a separate part costs more than the copy."""

TURN_ELEMENTS = 400
"""Array elements that are read or written between two yields: less than a millisecond."""
MAX_TAGS = 1000
"""Tagged fields of one struct. Kafka's largest struct has ten; a client may know more of them."""
MAX_OBJECT_BYTES = 64 * 1024 * 1024
"""Memory that one message decoded in turns may take, besides its records and its frame."""

_NUMBERS = tuple("bhHiIqd")
_NUMBERS_AT_ONCE = 8192
_LIST_BYTES = _STRING_BYTES = 56
_NUMBER_BYTES = 32
_TAG_COST = 32
"""Budget for a tagged field. It takes no memory, but as much time as an object of this size."""


class Exceeded(Exception):
    """A message is too large to be decoded or encoded at once: do it in turns."""


class MisfitError(Exception):
    """Raised by generated code if a value does not fit."""


def _misfit() -> NoReturn:
    raise MisfitError("a value does not fit")


def _exceed(*_: object) -> NoReturn:
    raise Exceeded


def _refuse(name: str, length: int) -> NoReturn:
    raise CorruptData(
        f"{name} has the length {length}, with which the message would take more than "
        f"{MAX_OBJECT_BYTES} bytes of memory: send less at a time"
    )


def _corrupt(name: str, length: int) -> NoReturn:
    raise CorruptData(f"{name} has the length {length}, which is impossible")


def _corrupt_tags(name: str, count: int) -> NoReturn:
    raise CorruptData(f"{name} has {count} tagged fields; at most {MAX_TAGS} are read")


def skip_tags(buffer: BytesLike, position: int, size: int, count: int) -> int:
    """Skip tagged fields; returns the position after them.

    Raises:
        CorruptData: they are too many, or do not fit.
        IndexError: the buffer ends within one.
    """
    if count > MAX_TAGS:
        _corrupt_tags("a struct", count)
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


def write_encoder(owner: Schema, version: int, in_turns: bool) -> Callable[..., Any]:
    """A function `(message, large, left)` that returns chunks of bytes, or in turns a generator
    `(message, large, chunks, left)` that appends to `chunks`, which may be emptied whenever it
    yields. To `large` it appends the indexes of chunks that are records above
    `LARGE_RECORDS_BYTES`. `left` is the number of elements that may be written.

    Raises:
        UsageError: the class has no such version.
    """
    return _EncoderSource(owner, version, in_turns).function()


def write_decoder(owner: Schema, version: int, in_turns: bool) -> Callable[..., Any]:
    """A function `(buffer, position, size, left)` that returns a message and the position after
    it; in turns it is a generator that returns them. `left` is the memory, in bytes, that the
    message may take.

    Raises:
        UsageError: the class has no such version.
    """
    return _DecoderSource(owner, version, in_turns).function()


class _Source:
    """The source of one function while it is generated.

    `run` holds the fixed-width values, or targets, that the next `flush` packs or unpacks at once.
    """

    verb = ""

    def __init__(self, owner: Schema, version: int, in_turns: bool) -> None:
        if not owner.versions.includes(version):
            raise UsageError(f"{owner.name} has no version {version}, only {owner.versions}")
        self.owner = owner
        self.version = version
        self.in_turns = in_turns
        self.name = f"{self.verb}_{owner.name}_v{version}{'_in_turns' * in_turns}"
        self.flexible = owner.flexible.includes(version)
        self.lines: list[str] = []
        self.margin = ""
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str]] = []
        self.locals = 0

    def write_body(self) -> None:
        raise NotImplementedError

    def function(self) -> Callable[..., Any]:
        """Generate, compile and return the function."""
        self.write_body()
        filename = f"<trimtab {self.name}>"
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, filename, "exec"), self.names)
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        made: Callable[..., Any] = self.names[self.name]
        return made

    def line(self, text: str) -> None:
        self.lines.append(self.margin + text)

    def turn(self) -> None:
        """In a loop: emit code that yields after every `TURN_ELEMENTS` elements."""
        if not self.in_turns:
            return
        self.line("turn += 1")
        with self.block(f"if turn > {TURN_ELEMENTS}:"):
            self.line("turn = 0")
            self.line("yield")

    def spend(self, cost: str, subject: str, length: str) -> None:
        """Emit code that subtracts `cost` from the budget."""
        self.line(f"left -= {cost}")
        with self.block("if left < 0:"):
            self.line(f"exceed({subject!r}, {length})")

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
        """The format of an inflexible length: 16 bits before a string, otherwise 32."""
        is_string = isinstance(declared.type, WireType) and declared.type.name == "string"
        return "h" if is_string and not declared.is_array else "i"

    def tagged_fields(self, owner: Schema) -> list[Field]:
        tagged = [each for each in owner.fields if self.is_tagged(each)]
        return sorted(tagged, key=lambda each: each.tag or 0)


class _EncoderSource(_Source):
    verb = "encode"

    def __init__(self, owner: Schema, version: int, in_turns: bool) -> None:
        super().__init__(owner, version, in_turns)
        self.write = "write"
        self.names |= {
            "short_varints": _SHORT_VARINTS,
            "varint": write_unsigned_varint,
            "string_varint": _string_varint,
            "misfit": _misfit,
            "exceed": _exceed,
            "pack": struct.pack,
        }

    def write_body(self) -> None:
        arguments = "m, large, chunks, left" if self.in_turns else "m, large, left"
        with self.block(f"def {self.name}({arguments}):"):
            self.line("turn = 0" if self.in_turns else "chunks = []")
            self.line("write = chunks.append")
            self.structure(self.owner, "m")
            self.flush()
            if self.in_turns:
                self.line("yield")
            else:
                self.line("return chunks")

    def structure(self, owner: Schema, variable: str) -> None:
        for field in owner.fields:
            value = f"{variable}.{field.name}"
            if not self.has(field):
                if not field.ignorable:
                    with self.block(f"if {self.differs(field, value)}:"):
                        self.line("misfit()")
            elif not self.is_tagged(field):
                self.value(field, value)
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
            # struct would silently pad or cut a value of another length.
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
        """Emit code that writes the run together with a length prefix."""
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
            if isinstance(declared.type, WireType) and declared.type.code in _NUMBERS:
                self.numbers(declared.type.code, items)
                return
            self.spend(f"len({items})", declared.name, f"len({items})")
            with self.block(f"for {item} in {items}:"):
                self.turn()
                if isinstance(declared.type, Schema):
                    self.structure(declared.type, item)
                else:
                    element = declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
                    self.value(element, item)
                self.flush()

    def numbers(self, code: str, items: str) -> None:
        if not self.in_turns:
            self.spend(f"len({items}) >> 4", "numbers", f"len({items})")
            self.line(f'{self.write}(pack(f">{{len({items})}}{code}", *{items}))')
            return
        start, piece = self.local("start"), self.local("piece")
        with self.block(f"for {start} in range(0, len({items}), {_NUMBERS_AT_ONCE}):"):
            with self.block(f"if {start}:"):
                self.line("yield")
            self.line(f"{piece} = {items}[{start} : {start} + {_NUMBERS_AT_ONCE}]")
            self.line(f'{self.write}(pack(f">{{len({piece})}}{code}", *{piece}))')

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
        # The tagged values are encoded separately, as their count and sizes come before them.
        outer_run, outer_write = self.run, self.write
        tags, count = self.local("tags"), self.local("count")
        self.line(f"{tags} = []")
        self.line(f"{count} = 0")
        for field in tagged:
            value, data = f"{variable}.{field.name}", self.local("tagged")
            with self.block(f"if {self.differs(field, value)}:"):
                self.line(f"{data} = []")
                self.write, self.run = f"{data}.append", []
                self.value(field, value)
                self.flush()
                self.line(f'{data} = b"".join({data})')
                prefix = write_unsigned_varint(field.tag or 0)
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

    def __init__(self, owner: Schema, version: int, in_turns: bool) -> None:
        super().__init__(owner, version, in_turns)
        self.names |= {
            "finish_varint": finish_varint,
            "skip_tags": skip_tags,
            "corrupt": _corrupt,
            "corrupt_tags": _corrupt_tags,
            "exceed": _refuse if in_turns else _exceed,
            "getsizeof": getsizeof,
            "unpack_from": struct.unpack_from,
            "new": object.__new__,
        }

    def write_body(self) -> None:
        with self.block(f"def {self.name}(b, p, size, left):"):
            if self.in_turns:
                self.line("turn = 0")
                with self.block("if left < 0:"):  # makes it a generator also without arrays
                    self.line("yield")
            made = self.structure(self.owner)
            self.flush()
            self.line(f"return {made}, p")

    def structure(self, owner: Schema) -> str:
        """Emit code that reads an instance; returns its variable. May leave the run pending."""
        made = self.local("made")
        # Filling an instance slot by slot takes half the time of calling the class.
        self.line(f"{made} = new({self.constant(owner.name, owner.cls)})")
        for field in owner.fields:
            target = f"{made}.{field.name}"
            if not self.has(field) or self.is_tagged(field):
                self.line(f"{target} = {self.default(field)}")
            else:
                self.value(field, target, f"{owner.name}.{field.name}")
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
        """Emit code that reads the run and a length; returns the length's variable."""
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
            if self.in_turns and kind.name in ("string", "bytes"):
                self.spend(f"getsizeof({target}) - {_STRING_BYTES}", subject, f"{length}")

    def array(self, declared: Field, target: str, subject: str) -> None:
        length = self.length(declared)
        with self.unless_null(declared, length, target):
            if self.flexible:
                self.line(f"{length} -= 1")
            # Before any allocation: the elements must fit into the bytes that are left.
            least = self.least_size(
                declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
            )
            with self.block(f"if not 0 <= {length} * {least} <= size - p:"):
                self.line(f"corrupt({subject!r}, {length})")
            element = declared._replace(is_array=False, nullable_versions=NO_VERSIONS)
            self.spend(f"{length} * {8 + self.cost(element)}", subject, length)
            if isinstance(declared.type, WireType) and declared.type.code in _NUMBERS:
                self.numbers(declared.type.code, target, length, least)
                return
            items, item = self.local("items"), self.local("item")
            self.line(f"{target} = {items} = []")
            with self.block(f"for _ in range({length}):"):
                self.turn()
                if isinstance(declared.type, Schema):
                    made = self.structure(declared.type)
                    self.flush()
                    self.line(f"{items}.append({made})")
                else:
                    self.value(element, item, subject)
                    self.flush()
                    self.line(f"{items}.append({item})")

    def numbers(self, code: str, target: str, length: str, least: int) -> None:
        if not self.in_turns:
            self.line(f'{target} = list(unpack_from(f">{{{length}}}{code}", b, p))')
            self.line(f"p += {length} * {least}")
            return
        items, piece = self.local("items"), self.local("piece")
        self.line(f"{target} = {items} = []")
        with self.block(f"while {length}:"):
            self.line(f"{piece} = min({length}, {_NUMBERS_AT_ONCE})")
            self.line(f'{items} += unpack_from(f">{{{piece}}}{code}", b, p)')
            self.line(f"p += {piece} * {least}")
            self.line(f"{length} -= {piece}")
            with self.block(f"if {length}:"):
                self.line("yield")

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
            with self.block(f"if {count} > {MAX_TAGS}:"):
                self.line(f"corrupt_tags({owner.name!r}, {count})")
            self.spend(f"{count} * {_TAG_COST}", f"{owner.name} tagged fields", count)
            if self.in_turns:
                self.line(f"turn += {count}")
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
                for field in tagged:
                    subject = f"{owner.name}.{field.name}"
                    with self.block(f"if {tag} == {field.tag}:"):
                        self.value(field, f"{made}.{field.name}", subject)
                        self.flush()
                        with self.block(f"if p != {end}:"):
                            self.line(f"corrupt({subject!r}, {length})")
                self.line(f"p = {end}")

    def cost(self, declared: Field) -> int:
        """The approximate memory of a value; strings and arrays count as empty."""
        if declared.is_array:
            return _LIST_BYTES
        if isinstance(declared.type, WireType):
            if declared.type.code == "?":
                return 0
            return _NUMBER_BYTES if declared.type.code in _NUMBERS else _STRING_BYTES
        fields = declared.type.fields
        carried = (self.cost(each) for each in fields if self.has(each))
        return _LIST_BYTES + 8 * len(fields) + sum(carried)

    def least_size(self, declared: Field) -> int:
        """The smallest encoded size of a value, in bytes."""
        if declared.is_array or (isinstance(declared.type, WireType) and not declared.type.code):
            return 1 if self.flexible else struct.calcsize(">" + self.length_code(declared))
        if isinstance(declared.type, WireType):
            return declared.type.size
        if self.is_nullable(declared):
            return 1
        return int(self.flexible) + sum(
            self.least_size(field)
            for field in declared.type.fields
            if self.has(field) and not self.is_tagged(field)
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
