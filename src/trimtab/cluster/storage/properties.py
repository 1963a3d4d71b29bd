"""Kafka's small files of `NAME=VALUE` lines that identify a directory, and ids as text."""

from __future__ import annotations

from base64 import b64decode, b64encode


def read_properties(content: bytes, separator: str) -> dict[str, str]:
    """Parse `NAME<separator>VALUE` lines; other lines and comments are ignored."""
    properties = {}
    for line in content.decode("utf-8", "replace").splitlines():
        name, found, value = line.partition(separator)
        if found and not name.startswith("#"):
            properties[name.strip()] = value.strip()
    return properties


def encode_uuid(uuid: bytes) -> str:
    """Kafka's text for a UUID: 22 characters of URL-safe Base64."""
    return b64encode(uuid, b"-_").decode("ascii").rstrip("=")


def decode_uuid(text: str) -> bytes | None:
    """The 16 bytes of a UUID; None if the text is not a UUID."""
    try:
        uuid = b64decode(text + "==", b"-_", validate=True)
    except ValueError:
        return None
    return uuid if len(uuid) == 16 else None
