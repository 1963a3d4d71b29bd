"""Compile every `*_cy.py` of the package; without a C compiler they run as Python.

The `.pxd` file of such a module declares the C functions and fields for other compiled modules.
The types that it cimports are C types in the module, too, although the module imports them as
Python does.

`TRIMTAB_PURE=1` compiles nothing. `TRIMTAB_REQUIRE_COMPILED=1` turns a failed compilation into an
error (CI sets it). `CFLAGS` are the C compiler's own options; default: `-O3 -g0`.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
os.environ.setdefault("CFLAGS", "-O3 -g0")  # debug information takes long to write
pure = os.environ.get("TRIMTAB_PURE") == "1"
required = os.environ.get("TRIMTAB_REQUIRE_COMPILED") == "1"


class Compile(build_ext):
    """Compiles all modules or none, since they call each other in C; prints the result and, after
    a failure, what to install.

    Compiles as many modules in parallel as there are cores.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def run(self) -> None:
        super().run()
        built = {each.name: Path(self.get_ext_fullpath(each.name)) for each in self.extensions}
        missing = [name for name, path in built.items() if not path.exists()]
        if missing:
            for path in built.values():
                path.unlink(missing_ok=True)
            print(
                f"\nNot compiled: {', '.join(missing)}.\n"
                "All of them run as Python, about ten times slower.\n"
                "The compiler's message is above. If Python.h or gcc is missing, on Debian:\n"
                "    apt install gcc python3-dev\n"
                "and then: rm -f .venv/built\n",
                file=sys.stderr,
            )


def extensions() -> list[Extension]:
    """One for every hot module."""
    made: list[Extension] = cythonize(
        [
            Extension(
                ".".join(path.relative_to(SOURCE).with_suffix("").parts),
                [str(path)],
            )
            for path in sorted(SOURCE.rglob("*_cy.py"))
        ],
        build_dir="build/cython",
        # Spawned processes would run this file again.
        nthreads=(os.cpu_count() or 1) if multiprocessing.get_start_method() == "fork" else 0,
        include_path=[str(SOURCE)],  # finds the .pxd files of other modules
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
    )
    for extension in made:
        extension.optional = not required  # cythonize resets it
    return made


setup(cmdclass={"build_ext": Compile}, ext_modules=[] if pure else extensions())
