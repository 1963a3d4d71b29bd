"""The site: its pictures are up to date, it is built, and its links lead somewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from trimtab.client.options import ADMIN, CONSUMER, PRODUCER
from trimtab.config import BROKER, GROUP, TOPIC, OptionTable
from trimtab.spark.options.names import SINK, SOURCE, SparkOption
from website.check import Links, find_broken_links, find_faults
from website.pictures import FOLDER, PICTURES, draw

ROOT = Path(__file__).resolve().parents[2]
needs_mkdocs = pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings_handlers") is None,
    reason="needs the dependency group docs",
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


def test_broken_links_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="#here"></a><a href="b/#there"></a><a href="b/"></a>'
        '<a href="#gone"></a><a href="c/"></a><a href="b/#gone"></a><img src="x.png">'
        '<a href="https://kafka.apache.org"></a>'
    )
    (tmp_path / "b" / "index.html").write_text('<p id="there"><a href="../#here"></a>')
    assert list(find_broken_links(tmp_path)) == [
        "index.html: #gone has no such anchor",
        "index.html: c/ does not exist",
        "index.html: b/#gone has no such anchor",
        "index.html: x.png does not exist",
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
    site: Path, page: str, options: OptionTable | tuple[SparkOption, ...]
) -> None:
    text = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
    assert [each.name for each in options if f"<code>{each.name}</code><a" not in text] == []


@needs_mkdocs
def test_the_reference_of_python_has_the_synchronous_methods(site: Path) -> None:
    """They are made by a decorator, so only an inspection finds them."""
    anchors = Links(site / "reference" / "api" / "index.html").anchors
    assert {
        "trimtab.Producer.send",
        "trimtab.Admin.create_topic",
        "trimtab.Cluster.slow",
    } <= anchors


@needs_mkdocs
@pytest.mark.skipif(
    shutil.which("chromium") is None or "AXE" not in os.environ or find_spec("playwright") is None,
    reason="needs Chromium, playwright, and axe-core's axe.min.js, which AXE names",
)
@pytest.mark.timeout(3600)
def test_a_browser_finds_no_fault(site: Path) -> None:
    axe, chromium = Path(os.environ["AXE"]), shutil.which("chromium")
    assert chromium is not None
    assert list(find_faults(site, axe, chromium, only="", pictures=None)) == []
