"""Compiled or interpreted, the same source: every odd argument has the same outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from trimtab.client.accumulator import intake_cy

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, warnings
warnings.simplefilter("error")
from trimtab.client.accumulator import intake_cy
from tests.unit.client.odd_values import outcomes
print(json.dumps([intake_cy.__file__.rpartition(".")[2], outcomes()]))
"""


def run(pure: str) -> list[tuple[str, str]]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TRIMTAB_PURE": pure},
    )
    assert ran.stderr == ""
    kind, found = json.loads(ran.stdout)
    assert kind == ("py" if pure else "so")
    return [(tried, outcome) for tried, outcome in found]


@pytest.mark.skipif(intake_cy.__file__.endswith(".py"), reason="the modules are not compiled")
def test_odd_arguments_come_to_the_same_in_both_forms() -> None:
    compiled, interpreted = run(""), run("1")
    differences = [
        (*one, other) for one, other in zip_longest(compiled, interpreted) if one != other
    ]
    assert differences == []
    assert len(compiled) > 1500
    # Nothing is refused by accident: what is wrong is said, and how to put it right. A ValueError
    # is that of the argument's own __index__, a RuntimeError that of its __len__.
    kinds = {outcome.partition(":")[0].partition("(")[0] for tried, outcome in compiled}
    kinds -= {outcome.partition("(")[0] for tried, outcome in compiled if "stored" in tried}
    assert kinds <= {"Delivery", "RecordMetadata", "UsageError", "None", "ValueError"}
