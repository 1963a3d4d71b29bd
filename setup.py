"""Compile every `*_cy.py` of the package where a C compiler is at hand; run them as Python elsewhere.

`TRIMTAB_REQUIRE_COMPILED=1` turns a failed compilation into an error (CI sets it).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = Path("src")
optional = os.environ.get("TRIMTAB_REQUIRE_COMPILED") != "1"
extensions = [
    Extension(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts),
        [str(path)],
        extra_compile_args=["-O3"],
        optional=optional,
    )
    for path in sorted(SOURCE.rglob("*_cy.py"))
]

setup(
    ext_modules=cythonize(
        extensions,
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
    )
)
