"""Functions that are called in a forked process."""

from __future__ import annotations

import gc
import os

from tests.unit.forked import in_child
from trimtab.threads.forks import call_in_forked_child


def test_a_forked_child_calls_the_registered_functions_of_existing_objects() -> None:
    class Heir:
        def __init__(self) -> None:
            self.called_in: list[int] = []

        def inherit(self) -> None:
            self.called_in.append(os.getpid())

    alive, gone = Heir(), Heir()
    call_in_forked_child(alive, Heir.inherit)
    call_in_forked_child(gone, Heir.inherit)
    called_in = gone.called_in
    del gone
    gc.collect()
    assert in_child(lambda: [alive.called_in == [os.getpid()], called_in]) == "[True, []]"
    assert alive.called_in == []
