"""trimtab as it is distributed: the source distribution, the wheel, and what an index shows.

With `PACKAGING=1` (environment; `.ci/run` sets it) the wheel is built from the source distribution,
in isolation, with this Python, and tried in a bare environment. `PACKAGING=all` does so with each
Python from 3.11 to 3.14 that is on the path or that pyenv has. Bare: a new virtual environment, an
empty home, and a path on which there is no compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 4 << 20
"""Of a wheel."""
HOT = "client/partitioner/murmur2_cy.py"
"""The module that a small tree has of those that are compiled."""

packs = os.environ.get("PACKAGING", "")


def builds(test: Callable[[Bare], None]) -> Callable[[Bare], None]:
    """Marks a test for which a wheel is built and installed."""
    skip = pytest.mark.skipif(not packs, reason="builds and installs; asked for by PACKAGING=1")
    marked: Callable[[Bare], None] = pytest.mark.timeout(1800)(skip(test))
    return marked


@cache
def pythons() -> list[str]:
    """The Pythons to try: this one, or all that are found."""
    if packs != "all":
        return [sys.executable]
    found = []
    for version in (f"3.{minor}" for minor in range(11, 15)):
        of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
        named = [shutil.which(f"python{version}"), *map(str, of_pyenv)]
        found += [each for each in named if each is not None and makes_environments(each)][:1]
    return found


def makes_environments(python: str) -> bool:
    """pyenv's shims fail, and so does Debian's without python3-venv."""
    done = subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False)
    return done.returncode == 0


def fail_or_call(
    command: list[str], directory: Path, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    return subprocess.run(
        command,
        cwd=directory,
        env={**clean, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def call(command: list[str], directory: Path, more: Mapping[str, str] | None = None) -> str:
    done = fail_or_call(command, directory, more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_tree(target: Path) -> Path:
    """What a build needs, because setuptools writes into the source tree."""
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def build_wheel(source: Path, target: Path, more: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Build a wheel with what this environment has; the wheel, and its Requires-Dist."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    call([*wheel, "--wheel-dir", str(target), str(source)], target, more)
    (built,) = target.glob("*.whl")
    return built, re.findall("^Requires-Dist: (.*)", read_metadata(built), re.M)


def read_metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        return packed.read(name).decode()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tree(tmp_path_factory.mktemp("tree") / "trimtab")
    call([sys.executable, "setup.py", "--quiet", "sdist"], tree)
    (packed,) = (tree / "dist").iterdir()
    return packed


@pytest.fixture(scope="module")
def pure(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return build_wheel(sdist, tmp_path_factory.mktemp("pure"), {"TRIMTAB_PURE": "1"})


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A source tree in which one module is to be compiled."""
    tree = copy_tree(tmp_path / "trimtab")
    for path in (tree / "src").rglob("*_cy.py"):
        if not path.match(HOT):
            path.unlink()
    return tree


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without one."""
    (tmp_path / "empty").mkdir()
    return {"PATH": str(tmp_path / "empty")}


def list_sources(start: Path) -> set[str]:
    """The files that are distributed, relative to `start`."""
    return {
        str(path.relative_to(start))
        for kind in ("*.py", "*.pxd", "*.pyi", "py.typed")
        for path in (ROOT / "src").rglob(kind)
    }


def test_the_source_distribution_has_every_source(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    sources = list_sources(ROOT)
    assert len([name for name in sources if name.endswith(".pxd")]) > 3
    assert sources - packed == set()


def test_without_a_compiler_no_wheel_is_built_and_the_error_says_what_to_install(
    small: Path, tmp_path: Path, no_compiler: dict[str, str]
) -> None:
    for missing in (no_compiler, {"CC": "false"}):  # no compiler at all, and one without Python.h
        wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
        done = fail_or_call([*wheel, "--wheel-dir", str(tmp_path), str(small)], small, missing)
        assert done.returncode != 0
        assert list(tmp_path.glob("*.whl")) == []
        said = done.stdout + done.stderr
        assert "trimtab was not compiled, and nothing is installed." in said
        assert "apt install gcc python3-dev" in said
        assert "With TRIMTAB_PURE=1 in the environment it needs no compiler" in said


def test_in_a_checkout_without_a_compiler_the_modules_stay_interpreted(
    small: Path, no_compiler: dict[str, str]
) -> None:
    build = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = fail_or_call(build, small, no_compiler)
    assert done.returncode == 0, done.stderr
    assert "\nNot compiled: trimtab.client.partitioner.murmur2_cy.\n" in done.stderr
    assert "apt install gcc python3-dev" in done.stderr
    required = {**no_compiler, "TRIMTAB_REQUIRE_COMPILED": "1"}
    assert fail_or_call(build, small, required).returncode != 0
    assert list(small.rglob("*.so")) == []


def test_a_compiled_wheel_does_not_require_cython(small: Path, tmp_path: Path) -> None:
    wheel, required = build_wheel(small, tmp_path, {"CFLAGS": "-O0"})
    with zipfile.ZipFile(wheel) as packed:
        (extension,) = (name for name in packed.namelist() if name.endswith(".so"))
    assert Path(extension).name.startswith("murmur2_cy.")
    assert not [each for each in required if each.startswith("cython")]


def test_a_pure_wheel_is_for_every_platform_and_requires_cython(
    pure: tuple[Path, list[str]],
) -> None:
    wheel, required = pure
    assert wheel.name.endswith("-py3-none-any.whl")
    assert [each for each in required if each.startswith("cython>=")]


def test_a_wheel_has_the_sources_and_the_types(pure: tuple[Path, list[str]]) -> None:
    with zipfile.ZipFile(pure[0]) as packed:
        assert list_sources(ROOT / "src") - {*packed.namelist()} == set()


def test_uvloop_is_required_only_where_it_has_releases(pure: tuple[Path, list[str]]) -> None:
    (uvloop,) = (each for each in pure[1] if each.startswith("uvloop"))
    assert uvloop.partition("; ")[2] == (
        'sys_platform != "win32" and implementation_name == "cpython"'
    )


def test_an_index_shows_the_readme_without_links_into_the_repository(
    pure: tuple[Path, list[str]],
) -> None:
    shown = read_metadata(pure[0]).partition("\n\n")[2]
    links = r"\]\(([^)]*)\)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(links, shown) == [
        each for each in re.findall(links, readme) if each.startswith("http")
    ]
    assert "docs/testing.md has a topic for each test" in shown
    assert re.search(r"\n\*Picture: The report of make demo.*\*\n", shown)


@dataclass
class Bare:
    """A new virtual environment with trimtab from a wheel, without a home and a compiler."""

    wheel: Path
    directory: Path
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """Run a program of the environment."""
        done = subprocess.run(
            [str(self.directory / "bin" / words[0]), *words[1:]],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=pythons())
def bare(
    sdist: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Bare:
    directory = tmp_path_factory.mktemp("bare")
    call([request.param, "-m", "venv", str(directory / "venv")], directory)
    python = str(directory / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = ["wheel", "--no-deps", "--wheel-dir", str(directory), str(sdist)]
    call([*pip, *wheels], directory)
    (wheel,) = directory.glob("*.whl")
    (directory / "home").mkdir()
    of_network = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")
    }
    environment = {**of_network, "HOME": str(directory / "home"), "PATH": "/nowhere"}
    made = Bare(wheel, directory / "venv", environment)
    made.run(*("python", *pip[1:], "install", "--no-cache-dir", str(wheel)))
    return made


@builds
def test_the_wheel_is_compiled_and_small(bare: Bare) -> None:
    assert bare.run("trimtab", "--version").endswith(", compiled\n")
    installed = bare.run("python", "-m", "pip", "list", "--format=freeze")
    assert "cython" not in installed.lower()
    size = bare.wheel.stat().st_size
    print(f"\n{bare.wheel.name}: {size:,} bytes")
    assert size <= MOST_BYTES


@builds
def test_a_record_is_sent_and_read(bare: Bare) -> None:
    assert "a record was sent" in bare.run("python", str(ROOT / ".ci" / "tour.py"))


@builds
def test_the_first_example_of_the_readme_runs(bare: Bare) -> None:
    example = first_program("README.md")
    assert "b'UA' b'EWR to IAH'" in bare.run("python", "-W", "error", "-c", example)


@builds
def test_the_first_tests_of_the_plugins_guide_pass(bare: Bare) -> None:
    pip = ("python", "-m", "pip", "--quiet", "install", "--no-cache-dir", "--only-binary=:all:")
    bare.run(*pip, "pytest", "confluent-kafka")
    tests = bare.directory / "test_guide.py"
    tests.write_text(first_program("docs/testing.md"), encoding="utf-8")
    said = bare.run(*("python", "-m", "pytest", "-q", "-W", "error", str(tests)))
    assert re.search(r"^2 passed in ", said, re.M), said


def first_program(document: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.S)
    assert found is not None
    return found[1]
