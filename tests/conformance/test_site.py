"""The site: its pictures are up to date, it is built, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.cluster.config import BROKER, GROUP, TOPIC
from trimtab.kafka.options import Option, OptionTable
from trimtab.spark.options.names import SINK, SOURCE
from website.check import Links, find_broken_links, find_faults, main
from website.pictures import FOLDER, KEYS, PICTURES, draw, draw_keys

ROOT = Path(__file__).resolve().parents[2]
needs_mkdocs = pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings_handlers") is None,
    reason="make docs installs what it needs",
)

AXE, CHROMIUM = Path(os.environ.get("AXE", "missing")), shutil.which("chromium") or ""
needs_browser = pytest.mark.skipif(
    not AXE.exists() or not CHROMIUM or find_spec("playwright") is None,
    reason="needs Chromium, playwright, and axe-core's axe.min.js, which AXE names",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return built


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_the_script_draws_it(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == draw(name)


def test_the_picture_of_keys_is_as_the_script_draws_it() -> None:
    assert KEYS.read_text(encoding="utf-8") == draw_keys()


def test_broken_links_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="#here"></a><a href="b/#there"></a><a href="b/"></a>'
        '<a href="#gone"></a><a href="c/"></a><a href="b/#gone"></a><img src="x.png">'
        '<a href="https://kafka.apache.org"></a><link rel="stylesheet" href="//a.example/b.css">'
    )
    (tmp_path / "b" / "index.html").write_text('<p id="there"><a href="../#here"></a>')
    assert list(find_broken_links(tmp_path)) == [
        "index.html: #gone has no such anchor",
        "index.html: c/ does not exist",
        "index.html: b/#gone has no such anchor",
        "index.html: x.png does not exist",
        "index.html: //a.example/b.css is loaded from elsewhere",
    ]


@needs_mkdocs
def test_no_link_of_the_site_is_broken(site: Path) -> None:
    assert list(find_broken_links(site)) == []


@needs_mkdocs
@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("producer", PRODUCER),
        ("consumer", CONSUMER),
        ("admin", ADMIN),
        ("topic", TOPIC),
        ("broker", BROKER),
        ("group", GROUP),
        ("spark-source", SOURCE),
        ("spark-sink", SINK),
    ],
)
def test_every_option_has_an_entry(
    site: Path, page: str, options: OptionTable | tuple[Option, ...]
) -> None:
    text = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
    assert [each.name for each in options if f"<code>{each.name}</code><a" not in text] == []


@needs_mkdocs
def test_the_reference_says_what_an_option_takes_and_what_is_refused(site: Path) -> None:
    pages = {
        name: (site / "reference" / name / "index.html").read_text(encoding="utf-8")
        for name in ("producer", "broker", "topic", "spark-source")
    }
    assert "<code>all</code>; one of <code>0</code>, <code>1</code>" in pages["producer"]
    assert "int (ms); default <code>120000</code>; at least 0; KIP-91" in pages["producer"]
    assert "<code>interceptor.classes</code>: wrap send or poll" in pages["producer"]
    assert "<code>sasl.kerberos.*</code>" in pages["producer"]
    assert "can be changed while brokers run" in pages["broker"]
    assert "accepted without effect" in pages["topic"]
    assert "default <code>15m</code>; only for a stream" in pages["spark-source"]


@needs_mkdocs
def test_a_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="design/"' in home
    assert 'href="guide/"' in home
    kips = (site / "kips" / "index.html").read_text(encoding="utf-8")
    assert "<code>client/partitioner/sticky.py</code> <code>StickyPartitioner</code>" in kips
    assert not (site / "plan").exists()


@needs_mkdocs
def test_a_column_without_a_name_has_no_head(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("index.html")]
    heads = [head for page in pages for head in re.findall(r"<thead>.*?</thead>", page, re.S)]
    assert heads
    assert [head for head in heads if "<th" not in head.removeprefix("<thead>")] == []
    assert [head for head in heads if re.search(r"<th[^>]*></th>", head)] == []


@pytest.mark.parametrize(
    ("files", "axe", "fault"),
    [([], None, "no index.html: make docs builds it"), (["index.html"], "gone.js", "AXE=gone.js")],
)
def test_a_check_that_cannot_be_done_is_refused(
    files: list[str], axe: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in files:
        (tmp_path / each).write_text("")
    monkeypatch.setenv("CHROMIUM", sys.executable)
    monkeypatch.delenv("AXE", raising=False)
    if axe is not None:
        monkeypatch.setenv("AXE", axe)
    monkeypatch.setattr(sys, "argv", ["check", "--site", str(tmp_path)])
    with pytest.raises(SystemExit, match=fault):
        main()


@needs_mkdocs
def test_the_reference_of_python_has_the_synchronous_methods(site: Path) -> None:
    """They are made by a decorator, so only an inspection finds them."""
    anchors = Links(site / "reference" / "api" / "index.html").anchors
    assert {
        "trimtab.Producer.send",
        "trimtab.Admin.create_topic",
        "trimtab.Cluster.slow",
    } <= anchors


@needs_browser
def test_what_a_browser_shows_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<html lang="en"><title>a</title><style>[data-md-color-scheme="slate"] h1 {color: #eee}'
        '</style><body><main><h1>heading</h1><img src="a.png">'
        '<p style="width: 1000px">wide</p><img alt="b" src="http://127.0.0.1:1/b.png"></main>'
    )
    faults = list(find_faults(tmp_path, AXE, CHROMIUM, only="", pictures=tmp_path))
    assert any(each.startswith("home, phone, dark: ") and " px wider" in each for each in faults)
    assert not any(each.startswith("home, desktop") and " px wider" in each for each in faults)
    assert sum("image-alt (1 times)" in each for each in faults) == 4
    pale = [each.partition(": ")[0] for each in faults if "color-contrast (1 times)" in each]
    assert pale == ["home, desktop, dark", "home, phone, dark"]
    assert "loaded from elsewhere: http://127.0.0.1:1/b.png" in faults
    assert len(list(tmp_path.glob("home-*.png"))) == 4
    assert list(find_faults(tmp_path, AXE, CHROMIUM, only="other", pictures=None)) == []


@needs_mkdocs
@needs_browser
@pytest.mark.timeout(3600)
def test_a_browser_finds_no_fault(site: Path) -> None:
    assert list(find_faults(site, AXE, CHROMIUM, only="", pictures=None)) == []
