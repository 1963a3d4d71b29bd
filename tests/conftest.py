"""What every room's tests share: the two forms of the compiled modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def in_form(request: pytest.FixtureRequest) -> Callable[[str], ModuleType]:
    """Loads a `*_cy` module by its dotted name, in one form and then the other.

    A module that another of the two loads in turn comes in the form that the process runs. The
    compiled form is skipped where it was not built, unless TRIMTAB_REQUIRE_COMPILED=1.
    """
    return _interpreted if request.param == "interpreted" else _compiled


def _compiled(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if not (module.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)):
        assert os.environ.get("TRIMTAB_REQUIRE_COMPILED") != "1", f"{name} is not compiled"
        pytest.skip(f"{name} is not compiled: run `python setup.py build_ext --inplace`")
    return module


def _interpreted(name: str) -> ModuleType:
    alias = f"{name}_interpreted"
    if alias not in sys.modules:
        path = (SOURCE / Path(*name.split("."))).with_suffix(".py")
        spec = spec_from_file_location(alias, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[alias] = module
        spec.loader.exec_module(module)
    return sys.modules[alias]
