"""The file with a cluster's secret, which a client's options for SASL have as well.

It is a file of client options: `kafka-transactions.sh --command-config FILE`, and trimtab's own
commands likewise, log in with it, and may then do what only nodes may.
"""

from __future__ import annotations

import logging
import os
import re

from trimtab.kafka.errors import Unavailable, UsageError

_log = logging.getLogger(__name__)

SECRET_FILE = "cluster.secret"
USER = "node"
"""Who logs in with the secret."""
MECHANISM = "SCRAM-SHA-256"

_LEAST_LENGTH = 32
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PASSWORD = re.compile(
    rf'^sasl\.jaas\.config\s*=.*\susername="{USER}"\s+password="([A-Za-z0-9_-]+)"', re.MULTILINE
)


def new_secret() -> str:
    """A secret that cannot be guessed: 256 random bits."""
    return os.urandom(32).hex()  # not `secrets`, whose import would delay the start


def is_made(path: str) -> bool:
    """Whether the file is there, and written."""
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def read_secret(path: str) -> str:
    """The secret in a file; warns if others than its owner can read it.

    Raises:
        Unavailable: the file is missing, or cannot be read.
        UsageError: it has no secret, or one that could be guessed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
            if os.fstat(file.fileno()).st_mode & 0o077:
                _log.warning("other users of this machine can use %s: run chmod 600 %s", path, path)
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
        raise Unavailable(
            f"cannot read the cluster's secret in {path}: {reason}; name the file "
            f"{SECRET_FILE} of the controller's directory, or a copy of it, with "
            "--cluster-secret-file. The controller makes it when it first starts"
        ) from error
    found = _PASSWORD.search(text)
    if found is None:
        raise UsageError(
            f"{path} has no cluster's secret; name another file, or delete this one if it is the "
            "controller's: its next start makes another secret, which every broker then needs"
        )
    if len(found[1]) < _LEAST_LENGTH:
        raise UsageError(
            f"{path}: a cluster's secret of {len(found[1])} characters could be guessed; write "
            f"{_LEAST_LENGTH} random ones at least"
        )
    return found[1]


def read_or_make_secret(path: str, durable: bool = True) -> str:
    """The secret in a file; a missing file is made with a new one, for its owner only.

    Args:
        durable: whether the file must survive a crash of the machine.

    Raises:
        Unavailable: the file cannot be read or written.
        UsageError: as `read_secret`.
    """
    lines = (
        "# The secret of a trimtab cluster: anyone who can read it may do what its nodes may.",
        "security.protocol=SASL_PLAINTEXT",
        f"sasl.mechanism={MECHANISM}",
        f'sasl.jaas.config={_MODULE} required username="{USER}" password="{new_secret()}";',
        "",
    )
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), 0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret(path)
    except OSError as error:
        raise Unavailable(
            f"cannot write the cluster's secret to {path}: {error.strerror}; name another "
            "directory with --data"
        ) from error
    try:
        os.write(descriptor, "\n".join(lines).encode("ascii"))  # whole, for who waits for it
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return read_secret(path)
