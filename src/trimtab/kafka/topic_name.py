"""Which topic names Kafka allows (`org.apache.kafka.common.internals.Topic`)."""

from __future__ import annotations

import re

MAX_LENGTH = 249
"""Kafka's limit: `<topic>-<partition>` must fit into a file name."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def find_fault(name: str) -> str | None:
    """Why a topic name is not allowed, as a sentence; None if it is allowed."""
    if not name:
        return "Topic name is empty; give it at least one character."
    if name in (".", ".."):
        return f"Topic name {name!r} would be a directory; choose another."
    if len(name) > MAX_LENGTH:
        return (
            f"Topic name {name[:40]!r}… has {len(name)} characters; at most {MAX_LENGTH} are "
            "allowed."
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name {name!r} has a character other than ASCII letters, digits, '.', '_' "
            "and '-'."
        )
    return None


def collision_key(name: str) -> str:
    """The name with '.' replaced by '_', as in metric names; no two topics may share it."""
    return name.replace(".", "_")
