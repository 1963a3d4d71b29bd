"""The package itself: the cost of importing it, its names, and its two forms."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import trimtab
from trimtab._pure import SourceFinder


def python(program: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert ran.stderr == ""
    return ran.stdout


def test_the_source_runs_although_a_compiled_module_is_present() -> None:
    program = (
        "import sys, trimtab\n"
        "for name in trimtab.__all__: getattr(trimtab, name)\n"
        "hot = [module for name, module in sys.modules.items() if name.endswith('_cy')]\n"
        "print(len(hot) > 9, {module.__file__.rpartition('.')[2] for module in hot})"
    )
    assert python(program, TRIMTAB_PURE="1") == "True {'py'}\n"


def test_the_finder_leaves_every_other_module_alone() -> None:
    finder = SourceFinder("trimtab")
    wire = [os.path.join(directory, "kafka", "wire") for directory in trimtab.__path__]
    found = finder.find_spec("trimtab.kafka.wire.batch_cy", wire)
    assert found is not None
    assert str(found.origin).endswith("batch_cy.py")
    assert finder.find_spec("trimtab.kafka.wire.compression", wire) is None
    assert finder.find_spec("elsewhere.batch_cy", wire) is None
    assert finder.find_spec("trimtab.kafka.wire.absent_cy", wire) is None


def test_the_source_is_refused_without_cython() -> None:
    program = (
        "import sys; sys.modules['cython'] = None\n"
        "try: import trimtab\n"
        "except ImportError as error: print(error.name, error)"
    )
    said = python(program, TRIMTAB_PURE="1")
    assert said.startswith("cython TRIMTAB_PURE=1: ")
    assert "pip install 'cython>=3.3'" in said


def test_compiled_modules_need_no_cython() -> None:
    program = (
        "import sys; sys.modules['cython'] = None\n"
        "from trimtab._pure import is_compiled\n"
        "import trimtab\n"
        "if is_compiled():\n"
        "    for name in trimtab.__all__: getattr(trimtab, name)\n"
    )
    assert python(program, TRIMTAB_PURE="") == ""


def test_importing_the_package_imports_next_to_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import trimtab\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(loaded - {'__future__', 'importlib', 'warnings'}),\n"
        "      [name for name in sys.modules if name.startswith('trimtab.')])"
    )
    assert python(program, TRIMTAB_PURE="") == "['trimtab'] []\n"


@pytest.mark.parametrize("name", trimtab.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(trimtab, name).__name__ == name
    assert name in dir(trimtab)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'trimtab' has no attribute 'Broker'"):
        trimtab.Broker  # noqa: B018
