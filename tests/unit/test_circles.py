"""No module of trimtab imports itself through other modules.

import-linter compares folders. This check follows every import between modules, those inside
functions too. Imports for type checkers (`if TYPE_CHECKING:`) have a list of their own.
"""

from __future__ import annotations

import pytest
from grimp import ImportGraph, build_graph

# A circle is written as the package of its modules and their names in it. Open a circle, and delete
# it here. Do not add any.
RUNTIME = {
    # `delivery=exactly_once` extends a class of `sink`, which imports it when the option is given.
    "trimtab.spark.write: exact_sink sink",
}
FOR_TYPES = {
    # In each of these, one class creates or holds objects that call it back.
    "trimtab.cluster.server: connection listener",
    "trimtab.sim: connection loop network",
}


def circles(graph: ImportGraph) -> set[str]:
    """The largest sets of modules that import each other, directly or through others."""
    found = set()
    for module in graph.modules:
        both = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if both:
            found.add(describe({module, *both}))
    return found


def describe(modules: set[str]) -> str:
    parents = [module.split(".")[:-1] for module in sorted(modules)]
    package = parents[0]
    while any(parent[: len(package)] != package for parent in parents):
        package = package[:-1]
    name = ".".join(package)
    return f"{name}: {' '.join(module.removeprefix(f'{name}.') for module in sorted(modules))}"


@pytest.fixture(scope="module")
def runtime() -> set[str]:
    return circles(build_graph("trimtab", cache_dir=None, exclude_type_checking_imports=True))


def test_circles_are_found_and_chains_are_not() -> None:
    graph = ImportGraph()
    for importer, imported in (
        *(("p.a", "p.q.b"), ("p.q.b", "p.q.c"), ("p.q.c", "p.a")),
        *(("p.r.x", "p.r.y"), ("p.r.y", "p.r.x")),
        *(("p.d", "p.a"), ("p.a", "p.e"), ("p.d", "p.e")),
    ):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == {"p: a q.b q.c", "p.r: x y"}


def test_no_modules_import_each_other_but_those_listed(runtime: set[str]) -> None:
    assert runtime == RUNTIME


def test_no_modules_name_each_other_in_types_but_those_listed(runtime: set[str]) -> None:
    assert circles(build_graph("trimtab", cache_dir=None)) - runtime == FOR_TYPES
