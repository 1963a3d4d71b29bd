"""The benchmark of the pytest plugin: what it estimates, and what it refuses to measure."""

from __future__ import annotations

import pytest

from lab.benchmarks.plugin import Measured, estimate, run_tests


def test_each_test_after_the_first_counts_as_those_measured() -> None:
    """Six tests take 10 s more than one, so each takes 2 s, and 99 more take 198 s."""
    first, few = Measured(3, 1, 500), Measured(13, 6, 400)
    assert estimate(first, few) == Measured(3 + 198, 1 + 99, 500)


def test_a_run_in_which_a_test_does_not_pass_is_not_measured() -> None:
    conftest = "import pytest\n\n@pytest.fixture\ndef servers(): pytest.skip()\n"
    with pytest.raises(RuntimeError, match="not 2 tests passed"):
        run_tests(conftest, 2)
