"""Checks the built site: `python -m website.check` after `make docs`.

Every link and anchor leads somewhere. If Chromium and axe-core are there, every page is also opened
in a desktop's and a phone's width, light and dark: axe-core finds no violation, no page is wider
than its window, and nothing is loaded from elsewhere.

AXE names axe-core's `axe.min.js` (`npm install axe-core`), CHROMIUM the browser if it is not on the
path. `--pictures DIRECTORY` keeps a screenshot of each view, `--only` looks at some pages.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES = {"default": "light", "slate": "dark"}


class Links(HTMLParser):
    """The links and anchors of one page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name == "id" and value is not None:
                self.anchors.add(value)


def find_broken_links(site: Path) -> Iterator[str]:
    pages = {page: Links(page) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            start = site if parts.path.startswith("/") else page.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            where = page.relative_to(site)
            if not target.is_file():
                yield f"{where}: {link} does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link} has no such anchor"


def find_faults(
    site: Path, axe: Path, chromium: str, only: str, pictures: Path | None
) -> Iterator[str]:
    """What is wrong with pages as a browser shows them."""
    from playwright.sync_api import sync_playwright  # only to look: the links need no browser

    handler = functools.partial(Quiet, directory=str(site))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(reduced_motion="reduce")
        requested: list[str] = []
        view.on("request", lambda request: requested.append(request.url))
        for page in sorted(site.rglob("index.html")):
            path = page.parent.relative_to(site).as_posix()
            name = "home" if path == "." else path
            if not re.search(only, name):
                continue
            view.goto(f"{home}{path}/", wait_until="load")
            view.add_script_tag(path=axe)
            for width, (across, down) in WIDTHS.items():
                for scheme, colours in SCHEMES.items():
                    view.set_viewport_size({"width": across, "height": down})
                    view.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
                    yield from (f"{name}, {width}, {colours}: {each}" for each in look(view))
                    if pictures is not None:
                        file = f"{name.replace('/', '-')}-{width}-{colours}.png"
                        view.screenshot(path=pictures / file)
        yield from (
            f"loaded from elsewhere: {url}"
            for url in requested
            if not url.startswith((home, "data:"))
        )
        browser.close()
        server.shutdown()


def look(view: Any) -> Iterator[str]:
    """The faults of one view of a page."""
    wide = view.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    if wide > 0:
        yield f"{wide} px wider than the window"
    for violation in view.evaluate("axe.run().then(result => result.violations)"):
        places = [node["target"][0] for node in violation["nodes"]]
        yield f"{violation['id']} ({len(places)} times): {violation['help']}: {places[:3]}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--site", type=Path, default=SITE)
    arguments.add_argument("--pictures", type=Path)
    arguments.add_argument("--only", default="", help="pages: a regular expression")
    given = arguments.parse_args()
    faults = list(find_broken_links(given.site))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    axe = os.environ.get("AXE")
    if chromium is None or axe is None:
        print("not looked at in a browser: it needs Chromium, and AXE for axe-core's axe.min.js")
    else:
        faults += find_faults(given.site, Path(axe), chromium, given.only, given.pictures)
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
