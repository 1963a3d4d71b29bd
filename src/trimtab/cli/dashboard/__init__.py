"""Show a cluster's load in a browser, live: who causes it, what it costs, and what to do.

Measures bytes/s of every partition from outside, on any Kafka, and serves pages from the last
snapshot: brokers and which is hot and why, topics by load and by skew, keys and producers of the
newest records, groups with the time until their lag is cleared, bytes between racks and their
price, room for more partitions, and the plan of trimtab balance. Any number of readers cost the
brokers nothing more.

Nothing changes without --allow-changes, which needs a token. Without a token it serves loopback
only. --keys none reads no records; text shows keys to whoever can see the page.

exit codes: 1 refused or failed, 2 misspelt command line, 130 Ctrl-C, 143 SIGTERM
"""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from trimtab.cli.live.options import LIVE_OPTIONS, check_live_options, choose_keys
from trimtab.cli.options import (
    add_client_options,
    add_options,
    is_given,
    read_client_options,
    spell,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.style import say_note, say_warning
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab dashboard --bootstrap-server kafka:9092
  trimtab dashboard --probe --record hour.jsonl.gz
  trimtab dashboard --host 0.0.0.0 --token-file token --certificate tls.pem --key tls.key
  trimtab dashboard --allow-changes
  trimtab dashboard --replay hour.jsonl.gz
"""

_LEAST_TOKEN: Final = 16
_LIVE: Final = ("bootstrap_server", "command_config", "command_property", "probe")


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--port PORT=8780": "where to serve; 0: any free port",
        "--host HOST=127.0.0.1": "the address to serve at; one that is not loopback needs a token",
        "--token-file FILE": "a file with the token that readers need, 16 characters or more "
        "(default: one is made and printed, where one is needed)",
        "--certificate FILE": "serve HTTPS with this certificate chain (PEM)",
        "--key FILE": "its private key (PEM)",
        "--allow-changes": "let who has the token carry out the plan, pause and cancel it",
        "--window SECONDS=30": "rates are means over so long",
        **LIVE_OPTIONS,
        "--record FILE": "write each snapshot to this file, for --replay and what-if",
        "| --recording --replay PATH": "show a recording, or the directory of one, and no cluster",
    }
    types = {"--window": float, "--cost-per-gb": float, "--record": Path, "--recording": Path}
    add_options(parser, options, types=types)
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        from trimtab.cli.dashboard.parts import Site
        from trimtab.cli.dashboard.server import ServerLoop, is_loopback, serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"trimtab dashboard needs starlette and uvicorn: pip install 'trimtab[dashboard]' "
            f"({error})"
        ) from None
    from trimtab.cli.live.source import Recorded, Source, Watched

    check_live_options(arguments)
    path = arguments.recording
    for name in (*_LIVE, "allow_changes"):
        if path is not None and is_given(getattr(arguments, name)):
            raise UsageError(f"{spell(name)} is for a live cluster: leave it or --recording out")
    certificate = _read_certificate(arguments)
    is_local = is_loopback(arguments.host)
    token = _read_token(arguments, is_local)
    with _listen(arguments.host, arguments.port) as listener, ExitStack() as stack:
        if path is not None:
            source: Source = Recorded(path)
        else:
            options = read_client_options(arguments)
            watched = Watched(
                options,
                window_s=arguments.window,
                probes=arguments.probe,
                show_key=choose_keys(arguments.keys),
                record=arguments.record,
            )
            source = stack.enter_context(watched)
            stack.enter_context(report_unreachable(options))
        if token and not is_local and certificate is None:
            say_warning(
                "the token and the pages go over the network unencrypted: give --certificate"
            )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        login = f"?token={token}" if token else ""
        say_note(f"Serving {'https' if certificate else 'http'}://{shown}:{port}/{login}")
        sys.setswitchinterval(0.001)  # a page waits for the collector's thread several times
        site = Site(source, arguments.cost_per_gb, arguments.allow_changes)
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            return 128 + runner.run(serve(site, token, listener, certificate))


def _read_token(arguments: argparse.Namespace, is_local: bool) -> str | None:
    """The token that readers need; None on loopback, if nothing can be changed.

    Raises:
        UsageError: the file cannot be read, or its token is short.
    """
    if arguments.token_file is None:
        needs_token = arguments.allow_changes or not is_local
        return secrets.token_urlsafe(24) if needs_token else None
    try:
        token = Path(arguments.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {arguments.token_file}: {error}") from error
    if not re.fullmatch(rf"[\w.~-]{{{_LEAST_TOKEN},}}", token, re.ASCII):
        raise UsageError(
            f"--token-file {arguments.token_file}: write {_LEAST_TOKEN} or more letters and digits "
            "in it, such as `openssl rand -hex 16` prints"
        )
    return token


def _read_certificate(arguments: argparse.Namespace) -> tuple[str, str] | None:
    """Raises:
    UsageError: only one of the files is given, or one cannot be used.
    """
    import ssl

    files = arguments.certificate, arguments.key
    if files == (None, None):
        return None
    if None in files:
        raise UsageError("--certificate and --key: give both")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
    except OSError as error:
        raise UsageError(f"--certificate {files[0]} --key {files[1]}: {error}") from error
    return files


def _listen(host: str, port: int) -> socket.socket:
    """Raises:
    UsageError: the address cannot be used.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port {port}: write 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: {error}; name others, or port 0 for any free one"
        ) from error
