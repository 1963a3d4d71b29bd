"""What partitions had to carry before, from a table of Spark's: for plans that hold at the peak.

The rate that is expected of a partition is the highest of the day to come. Each window of that day
is expected to be as the median of the same window of the last seven days; from less than three days
it is the 95th percentile of all windows.

Source: `load.partition_load` of trimtab's Spark pipeline, with a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trimtab.balance.cluster_load import ClusterLoad, PartitionLoad
from trimtab.client.optional import import_pyarrow
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_COLUMNS: Final = ("window", "topic", "partition", "TotalBytes")
_DAY_S: Final = 86_400
_DAYS: Final = 7
_LEAST_DAYS: Final = 3
_MOST_CELLS: Final = 200_000_000


def read_history(table: str) -> dict[TopicPartition, float]:
    """The bytes/s that are expected to be written to each partition at the peak.

    Args:
        table: as `read_rates`.

    Raises:
        UsageError: as `read_rates`.
    """
    partitions, rates, length = read_rates(table)
    return dict(zip(partitions, _find_peaks(rates, length).tolist(), strict=True))


def read_rates(table: str) -> tuple[list[TopicPartition], NDArray[numpy.float64], int]:
    """The partitions of a table, the bytes/s that were written to them, by partition and window,
    and the length of a window in seconds.

    Args:
        table: a Parquet file, or a directory of them; windows of one length.

    Raises:
        UsageError: it cannot be read, is empty, or has other columns or windows; or pyarrow or
            numpy is not installed.
    """
    import numpy

    window, topics, partitions, sizes = _read(table)
    start, end = window
    lengths = numpy.unique(end - start)
    if len(lengths) != 1 or lengths[0] <= 0:
        raise UsageError(f"{table}: its windows have several lengths; give a table with one")
    length = int(lengths[0])
    keys, rows = numpy.unique(
        numpy.stack([topics.indices, partitions]), axis=1, return_inverse=True
    )
    columns = (start - start.min()) // length
    count = int(columns.max()) + 1
    if keys.shape[1] * count > _MOST_CELLS:
        raise UsageError(
            f"{table}: {keys.shape[1]} partitions x {count} windows are too many: give a table "
            "with longer windows, as roll_up makes it"
        )
    rates = numpy.zeros((keys.shape[1], count))
    numpy.add.at(rates, (rows.reshape(-1), columns), sizes / length)
    if count > 1:
        rates = rates[:, :-1]  # the last one may not be over
    names = topics.dictionary.to_pylist()
    found = [
        TopicPartition(names[topic], partition)
        for topic, partition in zip(*keys.tolist(), strict=True)
    ]
    return found, rates, length


def expect(load: ClusterLoad, rates: Mapping[TopicPartition, float]) -> ClusterLoad:
    """A cluster whose partitions get what is expected of them. Consumers read as many times as much
    as they do now; a partition that the history does not have keeps its load."""

    def change(each: PartitionLoad) -> PartitionLoad:
        rate = rates.get(each.partition)
        if rate is None:
            return each
        out = each.bytes_out * rate / each.bytes_in if each.bytes_in else each.bytes_out
        return each._replace(bytes_in=rate, bytes_out=out)

    return load._replace(partitions=[change(each) for each in load.partitions])


def _read(table: str) -> tuple[Any, Any, Any, Any]:
    """Beginnings and ends of the windows in seconds, topics by index, partitions, bytes."""
    pyarrow = import_pyarrow("--from")
    import pyarrow.parquet as parquet

    if not Path(table).exists():
        raise UsageError(f"{table}: there is no such file or directory")
    try:
        files = parquet.ParquetDataset(table)
        missing = [name for name in _COLUMNS if name not in files.schema.names]
        read = files.read([name for name in _COLUMNS if name not in missing]).combine_chunks()
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{table}: cannot be read as Parquet: {error}") from error
    if missing or not pyarrow.types.is_struct(read.schema.field("window").type):
        raise UsageError(
            f"{table}: has no column {', '.join(missing) or 'window of start and end'}: give a "
            'load table with windows, as partition_load(…, window="10 minutes") makes it'
        )
    if not read.num_rows:
        raise UsageError(f"{table}: has no rows")
    window = read["window"].combine_chunks()
    times = tuple(
        window.field(name).cast(pyarrow.timestamp("s"), safe=False).cast("int64").to_numpy()
        for name in ("start", "end")
    )
    return (
        times,
        read["topic"].combine_chunks().dictionary_encode(),
        read["partition"].to_numpy(),
        read["TotalBytes"].to_numpy(),
    )


def _find_peaks(rates: NDArray[numpy.float64], length: int) -> NDArray[numpy.float64]:
    """Of each partition the rate that is expected at the peak.

    Args:
        rates: by partition and window.
        length: of a window, in seconds.
    """
    import numpy

    a_day = _DAY_S // length
    days = min(_DAYS, rates.shape[1] // a_day) if a_day else 0
    if days < _LEAST_DAYS or _DAY_S % length:
        return numpy.quantile(rates, 0.95, axis=1)
    last = rates[:, rates.shape[1] - days * a_day :].reshape(len(rates), days, a_day)
    peaks: NDArray[numpy.float64] = numpy.median(last, axis=1).max(axis=1)
    return peaks
