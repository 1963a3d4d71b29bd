"""A scan for Polars and DuckDB: what a query needs of it becomes columns and bounds.

A filter becomes an expression of Arrow's. Arrow's data sets decide whether an expression can be
true of a file whose values have certain bounds; asked of the bounds of partitions, offsets and
times, they say what need not be read. The filter itself is applied to the rows as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from trimtab.client.fetcher.arrow import checked_columns, table_schema
from trimtab.client.fetcher.ranges import Limits
from trimtab.client.optional import import_package

if TYPE_CHECKING:
    import polars

_BOUNDED: Final = ("partition", "offset", "timestamp")
_FARTHEST: Final = 2**62
_Compare: TypeAlias = Callable[[Any, Any], Any]
_COMPARISONS: Final[Sequence[_Compare]] = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
_BETWEEN: Final[Mapping[str, tuple[_Compare, _Compare]]] = {
    "both": (operator.ge, operator.le),
    "left": (operator.ge, operator.lt),
    "right": (operator.gt, operator.le),
    "none": (operator.gt, operator.lt),
}
_DEEPEST: Final = 100
"""Levels of a filter that are looked at."""


class Scan(Protocol):
    """What is needed of a `TopicScan`."""

    columns: tuple[str, ...]
    bounds: dict[int, tuple[int, int]]

    @property
    def schema(self) -> pa.Schema: ...

    def _stream(
        self, columns: Sequence[str], limits: Limits = ..., count: int | None = ...
    ) -> Iterator[pa.RecordBatch]: ...


def lazy_frame(scan: Scan) -> polars.LazyFrame:
    """See `TopicScan.to_polars`."""
    pl = import_package("polars", "to_polars()", "polars.io.plugins")

    def frames(
        columns: list[str] | None, predicate: Any, count: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        names = scan.columns if columns is None else columns
        limits = Limits()
        if predicate is not None:
            found = _arrow_filter(pl, predicate)
            limits = Limits() if found is None else _limits(found, scan)
        for batch in scan._stream(names, limits, count if predicate is None else None):
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    schema = pl.DataFrame(scan.schema.empty_table()).schema
    lazy: polars.LazyFrame = pl.io.plugins.register_io_source(frames, schema=schema, is_pure=True)
    return lazy


def relation(scan: Scan, connection: Any) -> Any:
    """See `TopicScan.to_duckdb`."""
    duckdb = import_package("duckdb", "to_duckdb()")
    return (duckdb if connection is None else connection).from_arrow(_ScanDataset(scan))


class _ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """What DuckDB needs of a data set of Arrow's, the one kind of Arrow data to which it passes the
    columns and the filter of a query on."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, **others: object
    ) -> _Scanner:
        return _Scanner(self._scan, self._scan.columns if columns is None else columns, filter)


class _Scanner:
    def __init__(self, scan: Scan, columns: Sequence[str], filter: Any) -> None:
        self._scan, self._columns, self._filter = scan, columns, filter

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(table_schema(self._columns), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._filter is None:
            yield from self._scan._stream(self._columns)
            return
        # A filter may also name columns that the query does not return.
        named = str(self._filter)
        needed = [each for each in self._scan.columns if each in self._columns or each in named]
        for batch in self._scan._stream(needed, _limits(self._filter, self._scan)):
            yield batch.filter(self._filter).select(self._columns)


def _limits(expression: Any, scan: Scan) -> Limits:
    """The limits of the rows for which an expression of Arrow's may be true."""
    schema, files, disk = table_schema(checked_columns(None)), ds.IpcFileFormat(), LocalFileSystem()
    named = str(expression)

    def possible(bounds: Mapping[str, Any]) -> list[str]:
        """The names of those of these bounds in which it may be true."""
        fragments = [files.make_fragment(name, disk, bounds[name]) for name in bounds]
        dataset = ds.FileSystemDataset(fragments, schema, files, disk)
        return [each.path for each in dataset.get_fragments(expression)]

    def between(name: str, low: int, high: int) -> Any:
        field, kind = pc.field(name), schema.field(name).type
        return (field >= pa.scalar(low, kind)) & (field <= pa.scalar(high, kind))

    def first(name: str) -> int:
        """The least value of a column with which it may be true."""
        return _least(lambda value: bool(possible({"": between(name, -_FARTHEST, value)})))

    def end(name: str) -> int:
        return _least(lambda value: not possible({"": between(name, value, _FARTHEST)}))

    limits = Limits(
        partitions=[
            int(number)
            for number in possible(
                {
                    str(number): (pc.field("partition") == pa.scalar(number, pa.int32()))
                    & between("offset", start, stop - 1)
                    for number, (start, stop) in scan.bounds.items()
                    if start < stop
                }
            )
        ]
    )
    if "offset" in named:
        limits = limits._replace(first_offset=first("offset"), end_offset=end("offset"))
    if "timestamp" in named:
        limits = limits._replace(since=first("timestamp"))
    return limits


def _least(is_enough: Callable[[int], bool]) -> int:
    """The least number that is enough, if all greater ones are."""
    low, high = -_FARTHEST, _FARTHEST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _arrow_filter(pl: Any, predicate: Any, depth: int = 0) -> Any:
    """An expression of Arrow's that is true wherever one of Polars' is; None if there is none that
    says anything about partitions, offsets and times.

    Polars tells what an expression is made from, but not how. So the ways are tried.
    """
    inputs = predicate.meta.pop()[::-1]
    if depth == _DEEPEST or len(inputs) not in (2, 3):
        return None
    left, *others = inputs
    if all(each.meta.is_literal() or each.meta.is_column() for each in inputs):
        return _arrow_comparison(pl, predicate, inputs)
    known = [_arrow_filter(pl, each, depth + 1) for each in inputs]
    found = [each for each in known if each is not None]
    if len(inputs) == 2 and predicate.meta.eq(left & others[0]):
        return reduce(operator.and_, found) if found else None
    if len(found) == 2 and predicate.meta.eq(left | others[0]):
        return found[0] | found[1]
    return None


def _arrow_comparison(pl: Any, predicate: Any, inputs: Sequence[Any]) -> Any:
    """The same for a comparison of one column with literals."""
    names = [each.meta.output_name() for each in inputs if each.meta.is_column()]
    if len(names) != 1 or names[0] not in _BOUNDED:
        return None
    field, kind = pc.field(names[0]), table_schema(names).field(0).type
    values: list[Any] = []
    for each in inputs:
        literal = [field] if each.meta.is_column() else pl.select(each).to_series().to_list()
        if len(literal) != 1:
            return None
        values += literal
    if isinstance(values[-1], list):
        is_in = inputs[0].meta.is_column() and predicate.meta.eq(inputs[0].is_in(inputs[1]))
        return field.isin(pa.array(values[-1], kind)) if is_in else None
    values = [each if each is field else pc.scalar(pa.scalar(each, kind)) for each in values]
    if len(values) == 2:
        for compare in _COMPARISONS:
            if predicate.meta.eq(compare(*inputs)):
                return compare(*values)
        return None
    for closed, (low, high) in _BETWEEN.items():
        if predicate.meta.eq(inputs[0].is_between(*inputs[1:], closed)):
            return low(field, values[1]) & high(field, values[2])
    return None
