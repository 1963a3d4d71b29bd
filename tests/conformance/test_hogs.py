"""The processes that load the machine beside the tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conformance.conftest import hog


def used_ticks(pid: int) -> int:
    """The CPU time that a process has used in its own code."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_hog_uses_the_cpu_until_it_is_ended() -> None:
    with hog() as pid:
        while used_ticks(pid) < 10:
            os.sched_yield()
    assert not Path(f"/proc/{pid}").exists()


def test_as_many_hogs_run_as_were_asked_for(hogs: list[int]) -> None:
    assert len(hogs) == int(os.environ.get("HOGS", "0"))
    assert all(used_ticks(pid) >= 0 for pid in hogs)
