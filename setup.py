"""Compile every `*_cy.py` of the package.

The `.pxd` file of such a module declares the C functions and fields for other compiled modules.
The types that it cimports are C types in the module, too, although the module imports them as
Python does.

Without a C compiler no wheel is built, and nothing is installed, so that nobody gets the slow form
unasked. `TRIMTAB_PURE=1` asks for it: nothing is compiled, and the wheel is for every platform
(py3-none-any). `python setup.py build_ext --inplace`, for work on trimtab, continues without a
compiler, unless `TRIMTAB_REQUIRE_COMPILED=1` (CI sets it). `CFLAGS` are the C compiler's own
options; default: `-O3 -g0`.
"""

import multiprocessing
import os
import re
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, SetupError

SOURCE = Path("src")
INSTALL_A_COMPILER = """\
If gcc or Python.h is missing:
    on Debian and Ubuntu: apt install gcc python3-dev
    on Fedora:            dnf install gcc python3-devel
    on Alpine:            apk add gcc musl-dev python3-dev
    on macOS:             xcode-select --install"""
REQUIREMENTS = [
    "cramjam>=2.14",
    "crc32c>=2.8",
    # Faster than asyncio's own event loop, which takes its place where uvloop has no release.
    'uvloop>=0.21; sys_platform != "win32" and implementation_name == "cpython"',
]
SHADOW = "cython>=3.3"
"""Its module `cython` runs the `*_cy.py` files where they are not compiled."""

os.environ.setdefault("CFLAGS", "-O3 -g0")  # debug information takes long to write
pure = os.environ.get("TRIMTAB_PURE") == "1"
required = os.environ.get("TRIMTAB_REQUIRE_COMPILED") == "1"


class Compile(build_ext):
    """Compiles all modules or none, since they call each other in C; after a failure, says what to
    install.

    Compiles as many modules in parallel as there are cores.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count() or 1

    def run(self) -> None:
        in_a_checkout = self.distribution.commands == ["build_ext"]
        written = {each.name: each.sources for each in write_c(self.extensions)}
        for extension in self.extensions:
            extension.sources = written[extension.name]
            extension.optional = in_a_checkout and not required
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            raise SetupError(
                f"{error}\n\n"
                "trimtab was not compiled, and nothing is installed.\n"
                f"{INSTALL_A_COMPILER}\n"
                "With TRIMTAB_PURE=1 in the environment it needs no compiler, and is about ten "
                "times slower."
            ) from error
        built = {each.name: Path(self.get_ext_fullpath(each.name)) for each in self.extensions}
        missing = [name for name, path in built.items() if not path.exists()]
        if missing:
            for path in built.values():
                path.unlink(missing_ok=True)
            print(
                f"\nNot compiled: {', '.join(missing)}.\n"
                "All of them run as Python, about ten times slower.\n"
                f"{INSTALL_A_COMPILER}\n"
                "and then: rm -f .venv/built\n",
                file=sys.stderr,
            )


def write_c(extensions: list[Extension]) -> list[Extension]:
    """The same extensions with C files as their sources."""
    made: list[Extension] = cythonize(
        extensions,
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
    return made


def hot_modules() -> list[Extension]:
    """One extension for each."""
    return [
        Extension(".".join(path.relative_to(SOURCE).with_suffix("").parts), [str(path)])
        for path in sorted(SOURCE.rglob("*_cy.py"))
    ]


def index_page() -> str:
    """README.md for the page of a package index, where its links to files of this repository lead
    nowhere: their text stays, and the descriptions of pictures.
    """
    elsewhere = r"\((?!https?:|#)[^)]*\)"
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(rf"!\[([^]]*)\]{elsewhere}", r"*Picture: \1.*", text)
    return re.sub(rf"\[([^]]*)\]{elsewhere}", r"\1", text)


setup(
    cmdclass={"build_ext": Compile},
    ext_modules=[] if pure else hot_modules(),
    install_requires=[*REQUIREMENTS, *([SHADOW] if pure else [])],
    long_description=index_page(),
    long_description_content_type="text/markdown",
)
