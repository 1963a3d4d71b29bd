"""Fixtures for all tests: both forms of the compiled modules; one Apache Kafka of each kind.

Hypothesis has no deadlines.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from trimtab.sim.world import World

if TYPE_CHECKING:
    from lab.benchmarks.apache_kafka import ApacheKafka
    from lab.benchmarks.exactly_once import TwoPhaseKafka

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
HOT = re.compile(r"trimtab\.[\w.]+_cy")
INTERPRETED = "_interpreted"

# A shell makes its background jobs ignore Ctrl-C, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run JVMs for seconds: optimizing and verifying what they run costs more than it saves.
# All tests of Spark share one JVM, whose code fills the 48 MB that the first option leaves for it.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
for program in ("KAFKA_JVM_PERFORMANCE_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(program, QUICK_JVM)

# The time of an example depends on the machine more than on the code.
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")


SHARED = ("two_phase_kafka", "apache_kafka", "spark")
"""Fixtures of a JVM for all tests that use it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests on each shared Apache Kafka last, since also an idle one takes CPU time.

    If the tests run in several processes, those of a shared JVM are in the same one, and so are
    those of a file of `conformance` or `spark`, whose fixtures start processes.
    """
    used = {item: [each for each in SHARED if each in _fixtures(item)] for item in items}
    items.sort(key=lambda item: [name in used[item] for name in reversed(SHARED[:2])])
    for item in items:
        if used[item]:
            item.add_marker(pytest.mark.xdist_group(used[item][0]))
        elif item.path.is_relative_to(HERE / "conformance") or item.path.is_relative_to(
            HERE / "spark"
        ):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _fixtures(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in virtual time, by the method `run` of its first argument
    that has one, else of its fixture `world`.

    `@pytest.mark.run(...)` gives the method `run` of another argument than a world its options.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures: dict[str, Any] = pyfuncitem.funcargs
    arguments = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runners = [each for each in arguments.values() if hasattr(each, "run")]
    runner = runners[0] if runners else fixtures["world"]
    test = functools.partial(pyfuncitem.obj, **arguments)
    if isinstance(runner, World):
        runner.run(test())
    else:
        mark = pyfuncitem.get_closest_marker("run")
        runner.run(test, **(mark.kwargs if mark else {}))
    return True


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """One broker of Apache Kafka for all tests. Tests share its topics, groups and transactional
    ids, so each module uses names of its own."""
    from lab.benchmarks.apache_kafka import ApacheKafka
    from tests.kafka import started

    with started(ApacheKafka()) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def two_phase_kafka() -> Iterator[TwoPhaseKafka]:
    """As `apache_kafka`, with two-phase commit and requests that Kafka marks as unstable."""
    from lab.benchmarks.exactly_once import TwoPhaseKafka
    from tests.kafka import started

    with started(TwoPhaseKafka()) as kafka:
        yield kafka


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def in_form(request: pytest.FixtureRequest) -> Callable[[str], ModuleType]:
    """A function that loads a `*_cy` module by its dotted name; tests run once with each form.

    The `*_cy` modules that the module imports have the same form, since they share C functions. The
    compiled form is skipped if it was not built, unless TRIMTAB_REQUIRE_COMPILED=1.
    """
    return _interpreted if request.param == "interpreted" else _compiled


def _compiled(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if not (module.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)):
        assert os.environ.get("TRIMTAB_REQUIRE_COMPILED") != "1", f"{name} is not compiled"
        pytest.skip(f"{name} is not compiled: run `python setup.py build_ext --inplace`")
    return module


def _interpreted(name: str) -> ModuleType:
    alias = name + INTERPRETED
    if alias not in sys.modules:
        importlib.import_module(name)  # other modules are imported in the process's own form
        usual = {each: module for each, module in sys.modules.items() if HOT.fullmatch(each)}
        twins = {
            each.removesuffix(INTERPRETED): sys.modules[each]
            for each in sys.modules
            if each.endswith(INTERPRETED)
        }
        for each in usual:
            del sys.modules[each]
        sys.modules.update(twins)
        sys.meta_path.insert(0, _Sources())
        try:
            importlib.import_module(name)
        finally:
            del sys.meta_path[0]
            for each in [each for each in sys.modules if HOT.fullmatch(each)]:
                sys.modules[each + INTERPRETED] = sys.modules.pop(each)
            for each, module in usual.items():
                sys.modules[each] = module
                package, _, child = each.rpartition(".")
                setattr(sys.modules[package], child, module)
    return sys.modules[alias]


class _Sources(MetaPathFinder):
    """Finds the source of `*_cy` modules, never the compiled file."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not HOT.fullmatch(name):
            return None
        return spec_from_file_location(name, (SOURCE / Path(*name.split("."))).with_suffix(".py"))
