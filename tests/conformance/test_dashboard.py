"""The dashboard in a browser: every page in a desktop's and a phone's width, light and dark; by
keyboard alone; and without JavaScript."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dashboard.made_source import MadeSource, Served, serving
from tests.unit.cli.dashboard.test_server import MadeWatched
from tests.unit.cli.live.made_snapshots import Made, make_snapshot, make_tail, spread
from trimtab.balance.cluster_load import BrokerState
from trimtab.balance.level_plan import LevelPlan, find_level_plan
from trimtab.client.collector import PlanView, Snapshot
from trimtab.client.measure.lag import PartitionLag
from trimtab.kafka.records import TopicPartition
from website.check import WIDTHS, look

AXE, CHROMIUM = Path(os.environ.get("AXE", "missing")), shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(
    not AXE.exists() or not CHROMIUM or find_spec("playwright") is None,
    reason="needs Chromium, playwright, and axe-core's axe.min.js, which AXE names",
)
TOKEN = "a-token-of-some-length"
LONG = "x" * 249
GROUP = "<b>g</b>"
PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    f"/topics/{LONG}",
    "/groups",
    "/groups/%3Cb%3Eg%3C%2Fb%3E",
    "/racks",
    "/room",
    "/plan",
    "/brokers/0",
    "/gone",
]


def snapshot(number: int, rate: float = 9e6) -> Snapshot:
    """A cluster of which a broker and a key are hot."""
    hot = TopicPartition("orders", 0)
    made = make_snapshot(
        {
            "orders": [Made(rate, (0, 1)), Made(8e6, (0, 2)), Made(100.0, (1, 2))],
            LONG: spread([5000.0, None]),
            **{f"topic-{at}": spread([10.0 * at]) for at in range(60)},
        },
        number=number,
        taken_s=1_780_000_000.0 + 5 * number,
        brokers=[BrokerState(id, "abc"[id], 1 << 62, 10**12) for id in range(3)],
        lags=[PartitionLag(GROUP, hot, 0, 10**6, 10**6, 100.0, 50.0, None)],
        tails={hot: make_tail({"US": 0.9, "": 0.1})},
    )
    return made._replace(plan=PlanView(number, 0.0, find_plan()))


@cache
def find_plan() -> LevelPlan:
    """A leader change and a move; made once, as it takes seconds for many equal partitions."""
    rates = [Made(9e6, (0, 1)), Made(8e6, (0, 2)), Made(7e6, (0, 1)), Made(1.0, (1, 2))]
    return find_level_plan(make_snapshot({"orders": rates}).metered.load)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def source() -> MadeSource:
    source = MadeSource(snapshot(1))
    source.show(snapshot(2, 8e6))
    return source


@pytest.fixture
def served(source: MadeSource) -> Iterator[Served]:
    with serving(source) as served:
        yield served


def open_page(browser: Any, url: str, said: list[str], **options: Any) -> Any:
    """A page, whose errors and whose requests to elsewhere are noted."""
    view = browser.new_context(reduced_motion="reduce", **options).new_page()
    view.on("console", lambda message: said.append(f"console: {message.text}"))
    view.on("pageerror", lambda error: said.append(f"error: {error}"))
    home = "/".join(url.split("/")[:3])

    def note(request: Any) -> None:
        if not request.url.startswith((home, "data:")):
            said.append(request.url)

    view.on("request", note)
    view.goto(url, wait_until="load")
    return view


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_fault(browser: Any, served: Served, width: str, scheme: str) -> None:
    across, down = WIDTHS[width]
    size = {"width": across, "height": down}
    faults: list[str] = []
    view = open_page(
        browser, f"{served.origin}/", faults, color_scheme=scheme, viewport=size, bypass_csp=True
    )
    for path in PAGES:
        view.goto(f"{served.origin}{path}", wait_until="load")
        view.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        view.add_script_tag(path=AXE)
        faults += [f"{path}: {each}" for each in look(view)]
    missing = "console: Failed to load resource: the server responded with a status of 404"
    assert [each for each in faults if not each.startswith(missing)] == []
    view.context.close()


def test_the_policy_lets_pages_work_and_nothing_else(browser: Any, served: Served) -> None:
    said: list[str] = []
    view = open_page(browser, f"{served.origin}/topics/orders", said)
    assert view.evaluate("getComputedStyle(document.querySelector('nav')).display") == "flex"
    assert said == []
    view.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.a=1>')")
    view.evaluate("() => { const at = document.createElement('script'); at.text = 'window.a = 1'; "
                  "document.body.append(at) }")  # fmt: skip
    assert view.evaluate("window.a") is None
    view.context.close()


def focus(view: Any) -> str:
    """What has the focus, in words."""
    text: str = view.evaluate(
        "() => { const at = document.activeElement;"
        " return at.tagName + ' ' + (at.value || at.textContent).trim() }"
    )
    return text


def tab_to(view: Any, wanted: str) -> None:
    for _ in range(200):
        view.keyboard.press("Tab")
        if focus(view).startswith(wanted):
            return
    pytest.fail(f"Tab does not reach {wanted}")


def test_all_is_reached_by_keyboard(browser: Any, served: Served) -> None:
    view = open_page(browser, f"{served.origin}/", [])
    wanted = view.evaluate(
        "[...document.querySelectorAll('a, button, summary, input')]"
        ".filter(at => at.checkVisibility()).length"
    )
    reached = set()
    for _ in range(wanted):
        view.keyboard.press("Tab")
        reached.add(
            view.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")
        )
    assert len(reached) == wanted
    view.goto(f"{served.origin}/")
    view.keyboard.press("Tab")
    assert focus(view) == "A To the content"
    view.keyboard.press("Enter")
    view.keyboard.press("Tab")
    assert view.evaluate("document.querySelector('main').contains(document.activeElement)")
    view.context.close()


def wait_for(view: Any, text: str) -> None:
    view.wait_for_function(
        "text => document.querySelector('main').textContent.includes(text)", arg=text
    )


def test_an_update_keeps_focus_and_what_is_open(
    browser: Any, source: MadeSource, served: Served
) -> None:
    view = open_page(browser, f"{served.origin}/", [])
    tab_to(view, "SUMMARY ")
    summary = focus(view)[:24]
    view.keyboard.press("Enter")
    assert view.locator("details[open]").count() == 1
    source.show(snapshot(3, 700e6))
    wait_for(view, "708.0 MB/s")
    assert focus(view).startswith(summary)
    assert view.locator("details[open]").count() == 1
    tab_to(view, "A broker 2")
    source.show(snapshot(4, 900e6))
    wait_for(view, "908.0 MB/s")
    assert focus(view) == "A broker 2"
    view.keyboard.press("Enter")
    view.wait_for_url("**/brokers/2")
    view.context.close()


def test_updates_are_paused_and_resumed(browser: Any, source: MadeSource, served: Served) -> None:
    view = open_page(browser, f"{served.origin}/", [])
    wait_for(view, "16.0 MB/s")
    tab_to(view, "BUTTON Pause updates")
    view.keyboard.press("Enter")
    assert focus(view) == "BUTTON Resume updates"
    follower = open_page(browser, f"{served.origin}/", [])
    source.show(snapshot(3, 700e6))
    wait_for(follower, "708.0 MB")
    assert "708.0 MB/s" not in view.inner_text("main")
    view.keyboard.press("Enter")
    wait_for(view, "708.0 MB/s")
    for each in (view, follower):
        each.context.close()


def test_what_is_typed_is_kept_until_it_is_sent(
    browser: Any, source: MadeSource, served: Served
) -> None:
    view = open_page(browser, f"{served.origin}/topics", [])
    tab_to(view, "INPUT")
    view.keyboard.type("order")
    follower = open_page(browser, f"{served.origin}/topics", [])
    source.show(snapshot(3, 700e6))
    wait_for(follower, "708.0 MB")
    assert view.input_value("#q") == "order"
    view.keyboard.press("Enter")
    view.wait_for_url("**/topics?q=order*")
    assert view.locator("main tbody tr, main table tr").count() == 2
    for each in (view, follower):
        each.context.close()


def test_it_works_without_javascript(browser: Any, served: Served) -> None:
    view = open_page(browser, f"{served.origin}/", [], java_script_enabled=False)
    assert view.locator("#pause").is_hidden()
    assert "load the page again" in view.inner_text("footer")
    view.click("text=All 62 topics")
    view.fill("#q", "orders")
    view.press("#q", "Enter")
    view.click("main >> text=orders")
    assert view.inner_text("h1") == "Topic orders"
    view.goto(f"{served.origin}/room")
    view.fill("#partitions", "7")
    view.click("text=Ask")
    assert "Yes: 7 partitions" in view.inner_text("main")
    view.context.close()


def test_one_logs_in_and_carries_a_plan_out_by_keyboard(browser: Any) -> None:
    source = MadeWatched(snapshot(1))
    with serving(source, TOKEN, allows_changes=True) as served:
        said: list[str] = []
        view = open_page(browser, f"{served.origin}/plan", said)
        assert view.url.endswith("/login")
        for token, seen in (("wrong", "That is not the token."), (TOKEN, "Cluster")):
            tab_to(view, "INPUT")
            view.keyboard.type(token)
            view.keyboard.press("Enter")
            view.wait_for_selector(f"text={seen}")
        view.goto(f"{served.origin}/plan")
        tab_to(view, "BUTTON run")
        with view.expect_navigation():
            view.keyboard.press("Enter")
        assert view.url == f"{served.origin}/plan"
        view.context.close()
    assert source.done == ["run 1"]


def test_a_page_of_another_origin_reads_and_changes_nothing(browser: Any) -> None:
    source = MadeWatched(snapshot(1))
    with serving(source, TOKEN, allows_changes=True) as served, serving(MadeSource()) as other:
        view = open_page(browser, f"{served.origin}/?token={TOKEN}", [], bypass_csp=True)
        assert view.inner_text("h1") == "Cluster"
        evil = other.origin.replace("127.0.0.1", "localhost")
        view.goto(f"{evil}/", wait_until="load")
        for path in ("/snapshot.json", "/", "/events"):
            told = view.evaluate(
                "url => fetch(url, {credentials: 'include'}).then(() => 'told', () => 'refused')",
                served.origin + path,
            )
            assert told == "refused"
        view.evaluate(
            "url => fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include', "
            "body: new URLSearchParams({action: 'run', plan: '1'})}).catch(() => 0)",
            f"{served.origin}/plan",
        )
        with view.expect_navigation():
            view.evaluate(
                "url => { document.body.innerHTML = `<form method=post action=${url}>"
                "<input name=action value=cancel></form>`; document.forms[0].submit() }",
                f"{served.origin}/plan",
            )
        assert "only this page's own forms" in view.inner_text("body")
        view.context.close()
    assert source.done == []
