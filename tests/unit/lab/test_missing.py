"""An installed package has no lab: its commands say where to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["demo", "experiment"])
def test_a_command_of_the_lab_says_where_to_get_it(command: str) -> None:
    # What an import finds in an installed package: no module named lab.
    script = (
        "import importlib.abc, sys\n"
        "class NoLab(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.partition('.')[0] == 'lab':\n"
        "            raise ModuleNotFoundError(\"No module named 'lab'\", name='lab')\n"
        "sys.meta_path.insert(0, NoLab())\n"
        "from trimtab.cli import main\n"
        f"sys.exit(main([{command!r}]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert f"trimtab {command}: {command} is not part of the installed package" in ended.stderr
    assert "clone that, and run `make demo`" in ended.stderr
