"""The house rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.cluster.config import BROKER, TOPIC

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 600

# The clock, the network, files and chance reach these rooms only through the loop and what they
# are handed: that is why the same code runs in virtual time.
PURE_ROOMS = (
    "balance",
    "client",
    "cluster/broker",
    "cluster/controller",
    "cluster/coordinator",
    "cluster/metadata",
    "cluster/server",
    "cluster/storage",
    "kafka",
)
# What touches the world for these rooms, or stands outside of virtual time.
IMPURE = (
    "client/blocking",
    "client/network/tls.py",
    "client/network/tokens.py",
    "cluster/server/open_host.py",
    "cluster/server/secret_file.py",
)
BANNED_MODULES = {"time", "threading", "socket", "random", "os", "pathlib", "datetime", "secrets"}
BANNED_CALLS = {"open", "print", "input"}
# Nonces must be unguessable; simulations hand in their own.
ALLOWED_NAMES = {("random", "Random"), ("os", "strerror"), ("secrets", "token_urlsafe")}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def banned_uses(tree: ast.AST) -> Iterator[str]:
    """What the file imports or calls that its room must be handed instead."""
    nodes = list(ast.walk(tree))
    # Elsewhere `random` is the name of a `Random` that was handed in.
    has_module = any(
        isinstance(node, ast.Import) and any(name.name == "random" for name in node.names)
        for node in nodes
    )
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in BANNED_MODULES:
            for name in node.names:
                if (node.module, name.name) not in ALLOWED_NAMES:
                    yield f"line {node.lineno}: from {node.module} import {name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name in BANNED_MODULES and name.name != "random":
                    yield f"line {node.lineno}: import {name.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if has_module and node.value.id == "random" and node.attr != "Random":
                yield f"line {node.lineno}: random.{node.attr}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in BANNED_CALLS
        ):
            yield f"line {node.lineno}: {node.func.id}()"


def sleeps(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "sleep"
            and isinstance(node.value, ast.Name)
            and node.value.id == "time"
        ) or (isinstance(node, ast.ImportFrom) and node.module == "time"):
            yield f"line {node.lineno}"


def test_the_banned_names_are_found() -> None:
    bad = "import time\nfrom socket import socket\nimport random\nrandom.random()\nopen('x')\n"
    good = "import random\ndef pick(draw: random.Random) -> int: return draw.randrange(2)\n"
    handed_in = "from random import Random\ndef pick(random: Random): return random.randrange(2)\n"
    assert len(list(banned_uses(ast.parse(bad)))) == 4
    assert list(banned_uses(ast.parse(good))) == []
    assert list(banned_uses(ast.parse(handed_in))) == []


def test_the_sleeps_are_found() -> None:
    assert list(sleeps(ast.parse("import time\ntime.sleep(1)\n"))) == ["line 2"]
    assert list(sleeps(ast.parse("from time import sleep\n"))) == ["line 1"]


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_a_room_of_decisions_reaches_the_world_only_through_what_it_is_handed(room: str) -> None:
    found = [
        f"{relative(path)}, {use}"
        for path in sorted((SOURCE / "trimtab" / room).rglob("*.py"))
        if not str(path.relative_to(SOURCE / "trimtab")).startswith(IMPURE)
        for use in banned_uses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_no_test_sleeps() -> None:
    found = [
        f"{relative(path)}, {use}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for use in sleeps(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def said_tests(path: Path) -> list[Path]:
    """Where the tests of a module are, by a line of its docstring or of its folder's:

        Tests: test_a.py                     of this module; in a folder's, of all its modules
        Tests of b, c: tests/unit/x/test_a.py

    A name without a folder is in the module's own folder of tests. Only the lines that come first
    count: a module's own, then the folder's that name it, then the folder's that name nobody.
    """
    room = path.parent.relative_to(SOURCE / "trimtab")
    of_folder = docstring(path.parent / "__init__.py")
    named = rf"(?m)^Tests of (?:\w+, )*{path.stem}(?:, \w+)*: ([\w/.]+)"
    anonymous = r"(?m)^Tests: ([\w/.]+)"
    found = (
        re.findall(anonymous, docstring(path))
        or re.findall(named, of_folder)
        or re.findall(anonymous, of_folder)
    )
    return [ROOT / ("" if "/" in name else Path("tests/unit") / room) / name for name in found]


def test_every_module_has_a_test_file_by_its_name_or_says_where_its_tests_are() -> None:
    lost = []
    for path in MODULES:
        if path.name in ("__init__.py", "__main__.py"):
            continue
        room = path.parent.relative_to(SOURCE / "trimtab")
        subject = path.stem.removesuffix("_cy").strip("_")
        if not (ROOT / "tests" / "unit" / room / f"test_{subject}.py").exists():
            tests = said_tests(path)
            if not tests or not all(test.exists() for test in tests):
                lost.append(relative(path))
    assert lost == []


def test_the_modules_whose_tests_are_said_exist() -> None:
    unknown = [
        f"{relative(path)}: {name}"
        for path in SOURCE.rglob("__init__.py")
        for names in re.findall(r"(?m)^Tests of ([\w, ]+):", docstring(path))
        for name in names.split(", ")
        if not (path.parent / f"{name}.py").exists()
    ]
    assert unknown == []


def test_a_file_longer_than_a_sitting_says_why_it_is_one() -> None:
    unexplained = {
        relative(path): lines
        for path in [
            *MODULES,
            *(ROOT / "tests").rglob("*.py"),
            *(ROOT / "lab").rglob("*.py"),
        ]
        if (lines := path.read_text(encoding="utf-8").count("\n")) > LONGEST
        and not re.search(r"(?m)^Long because ", docstring(path))
    }
    assert unexplained == {}


def test_ci_builds_every_compiled_module_and_insists_on_it() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "TRIMTAB_REQUIRE_COMPILED=1" in script
    assert 'SOURCE.rglob("*_cy.py")' in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_no_module_is_left_out_of_the_type_check() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"] is True
    assert set(settings["files"]) == {"src", "lab", "tests", "examples"}
    assert not any("ignore_errors" in override for override in settings["overrides"])


def test_every_test_has_a_time_limit() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["tool"]["pytest"]["ini_options"]["timeout"] == 600
    assert "pytest-timeout" in declared["dependency-groups"]["dev"]


def test_the_lock_holds_every_declared_requirement() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"]
    groups = declared["dependency-groups"]
    of_setup = re.findall(r"""["']([\w-]+>=)""", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert len(of_setup) > 3
    wanted = [
        *declared["build-system"]["requires"],
        *of_setup,
        *(word for extra in extras.values() for word in extra),
        # `make dist` has an environment of its own.
        *(word for name, group in groups.items() if name != "release" for word in group),
    ]
    names = {re.split(r"[^A-Za-z0-9_-]", word)[0].lower() for word in wanted} - {"trimtab"}
    locks = (ROOT / "requirements.lock", ROOT / "website" / "requirements.lock")
    lines = [line for lock in locks for line in lock.read_text(encoding="utf-8").splitlines()]
    locked = {line.partition("==")[0].lower() for line in lines if "==" in line}
    assert names - locked == set()


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert documents
    broken = [
        f"{relative(document)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
        if not target.startswith(("http:", "https:", "mailto:"))
        and not (document.parent / target).exists()
    ]
    assert broken == []


def test_the_tests_that_documents_name_exist() -> None:
    text = (ROOT / "docs" / "kips" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists()
        or not re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_the_code_that_documents_name_exists() -> None:
    document = ROOT / "docs" / "kips" / "README.md"
    named = re.findall(r"\]\((\S+?\.py)\) `(\w+)`", document.read_text(encoding="utf-8"))
    assert named
    missing = [
        f"{path} {name}"
        for path, name in named
        if not re.search(rf"(def|class) {name}\b", (document.parent / path).read_text("utf-8"))
    ]
    assert missing == []


def test_every_option_that_is_said_to_be_honoured_is_read() -> None:
    tables = {
        SOURCE / "trimtab" / "cluster" / "config" / name for name in ("broker.py", "topic.py")
    }
    code = "".join(path.read_text("utf-8") for path in MODULES if path not in tables)
    read_as_topic_options = {each for option in TOPIC for each in option.synonyms}
    unread = [
        option.name
        for option in BROKER
        if option.honoured
        and option.name not in read_as_topic_options
        and f'"{option.name}"' not in code
    ]
    assert unread == []


def test_one_line_says_everywhere_what_trimtab_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    line = project["description"]
    for name in ("README.md", "mkdocs.yml", "src/trimtab/__init__.py"):
        assert line in (ROOT / name).read_text("utf-8"), name
