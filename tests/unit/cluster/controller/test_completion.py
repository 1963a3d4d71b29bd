"""When a reassignment is complete, as tables: target replicas first, then removed ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trimtab.cluster.controller.election import Completion, complete_reassignment
from trimtab.cluster.metadata.image import PartitionRegistration


def moving(
    replicas: Sequence[int], adding: Sequence[int], removing: Sequence[int]
) -> PartitionRegistration:
    return PartitionRegistration(0, 1, 0, 0, tuple(replicas), (1,), tuple(adding), tuple(removing))


@pytest.mark.kip(455)
@pytest.mark.parametrize(
    ("partition", "isr", "done"),
    [
        (moving([1, 2, 3], [], []), [1, 2, 3], None),
        # One replica replaces another.
        (moving([1, 2, 4, 3], [4], [3]), [1, 2, 3], None),
        (moving([1, 2, 4, 3], [4], [3]), [3, 4, 2, 1], Completion((1, 2, 4), (4, 2, 1))),
        # Replicas that stay may be out of sync.
        (moving([1, 2, 4, 3], [4], [3]), [4], Completion((1, 2, 4), (4,))),
        (moving([4, 5, 1, 2], [4, 5], [1, 2]), [1, 2, 4], None),
        (moving([4, 5, 1, 2], [4, 5], [1, 2]), [1, 4, 5], Completion((4, 5), (4, 5))),
        # More replicas.
        (moving([1, 2, 3, 4], [4], []), [1, 2, 3], None),
        (moving([1, 2, 3, 4], [4], []), [1, 4], Completion((1, 2, 3, 4), (1, 4))),
        # Fewer replicas: all remaining ones must be in sync.
        (moving([1, 2, 3], [], [3]), [1, 3], None),
        (moving([1, 2, 3], [], [3]), [1, 2], Completion((1, 2), (1, 2))),
        (moving([1, 2, 3], [], [3]), [3], None),
        (moving([4, 1, 2, 3], [4], [2, 3]), [4, 3], None),
        (moving([4, 1, 2, 3], [4], [2, 3]), [1, 4], Completion((4, 1), (1, 4))),
    ],
)
def test_a_reassignment_completes_when_enough_of_its_target_is_in_sync(
    partition: PartitionRegistration, isr: list[int], done: Completion | None
) -> None:
    assert complete_reassignment(partition, isr) == done
