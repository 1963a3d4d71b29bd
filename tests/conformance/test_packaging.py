"""The source distribution is complete: it has all files from which the wheel is built.

With `PACKAGING=1` (environment; `.ci/run` sets it) the test also builds the wheel, in isolation,
and installs it into a new environment, which compiles all modules again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes into the source tree."""
    tree = tmp_path_factory.mktemp("tree") / "trimtab"
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    call([sys.executable, "setup.py", "--quiet", "sdist"], tree, {"TRIMTAB_PURE": "1"})
    (packed,) = (tree / "dist").iterdir()
    return packed


def call(command: list[str], directory: Path, more: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_source_distribution_has_every_source(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    sources = {
        str(path.relative_to(ROOT))
        for kind in ("*.py", "*.pxd", "py.typed")
        for path in (ROOT / "src").rglob(kind)
    }
    assert len([name for name in sources if name.endswith(".pxd")]) > 3
    assert sources - packed == set()


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.environ.get("PACKAGING") != "1", reason="compiles; asked for by PACKAGING=1")
def test_the_wheel_built_from_it_is_compiled(sdist: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    required = {"TRIMTAB_REQUIRE_COMPILED": "1", "CFLAGS": "-O0 -g0"}
    call([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(sdist)], tmp_path, required)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    python = str(tmp_path / "fresh" / "bin" / "python")
    call([python, *pip[1:], "install", str(wheel)], tmp_path)
    trimtab = str(tmp_path / "fresh" / "bin" / "trimtab")
    assert call([trimtab, "--version"], tmp_path).endswith(", compiled\n")
    tour = (
        "from trimtab import Cluster, Producer\n"
        "with Cluster() as cluster, Producer(cluster.bootstrap_servers) as producer:\n"
        "    print(producer.send('numbers', b'1').result().offset)"
    )
    assert call([python, "-c", tour], tmp_path) == "0\n"
