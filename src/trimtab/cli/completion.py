"""Print a script that completes trimtab's commands, options and their values in a shell.

The script is made from the commands' own parsers, so make it again after an update of trimtab. It
needs the package shtab: pip install shtab.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Final

from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab completion bash > ~/.local/share/bash-completion/completions/trimtab
  trimtab completion zsh > ~/.zfunc/_trimtab
                                 a directory of $fpath; ~/.zshrc then calls compinit
  trimtab completion fish > ~/.config/fish/completions/trimtab.fish
"""

SHELLS: Final = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")


def run(arguments: argparse.Namespace) -> int:
    print(write_script(arguments.shell))
    return 0


def write_script(shell: str) -> str:
    """The script for one of `SHELLS`.

    Raises:
        UsageError: shtab is not installed.
    """
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError:
        raise UsageError("completion needs the package shtab: pip install shtab") from None
    from trimtab.cli.parser_tree import build_tree, walk

    tree = build_tree()
    for parser in walk(tree):
        for action in parser._actions:
            kind = _name_files(action)
            if kind is not None:
                action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]
    script: str = shtab.complete(tree, shell)
    return script


def _name_files(action: argparse.Action) -> str | None:
    """What shtab calls the files that this argument names, which its metavar says; None if it names
    no files."""
    words = str(action.metavar or "").replace(".properties", "").split(",")
    return {"FILE": "FILE", "DIR": "DIRECTORY"}.get(words[0])
