"""The style sheet and the script of the dashboard; nothing else is loaded.

Tests: tests/conformance/test_dashboard.py
"""

from __future__ import annotations

from typing import Final

from trimtab.cli.page import PAGE_STYLE
from trimtab.cli.plot import STYLE

CSS: Final = (
    STYLE
    + PAGE_STYLE
    + """
:root { --bad: #b3293c; --accent: #1f5f86; --faint: #596176; }
@media (prefers-color-scheme: dark) {
  :root { --bad: #ff8e9b; --accent: #86c1e8; --faint: #a5adbd; } }
a { color: var(--accent); } a:focus-visible, button:focus-visible, input:focus-visible,
summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--accent);
  outline-offset: 2px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 8px; top: 8px; background: var(--paper); padding: 6px; z-index: 1; }
header { border-bottom: 1px solid var(--line); padding: 10px 20px; }
header > div { max-width: 1120px; margin: 0 auto; display: flex; flex-wrap: wrap; gap: 4px 18px;
  align-items: baseline; }
header p { margin: 0; max-width: none; } header b { font-size: 17px; }
nav { display: flex; flex-wrap: wrap; gap: 2px 16px; }
nav a { text-decoration: none; padding: 3px 0; }
nav a[aria-current] { color: var(--ink); border-bottom: 3px solid var(--accent); }
h1, p, li, summary, figcaption { overflow-wrap: anywhere; }
main { padding-top: 20px; } h1 { font-size: 24px; } h2 { margin-top: 28px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  margin: 12px 0 0; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
.tiles b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--faint); font-size: 13px; }
.bad { color: var(--bad); font-weight: 600; }
.findings { margin-top: 14px; } .findings p { font-size: 15px; margin: 5px 0; }
.findings details { margin-top: 5px; } .findings summary { color: var(--ink); font-size: 15px;
  max-width: 90ch; } .findings details p { margin-left: 18px; }
.findings .none { color: var(--faint); }
table td { vertical-align: top; } td + td.text, th + th.text { padding-left: 18px; }
td .spark { width: 96px; max-width: 100%; height: 18px; }
form { margin: 12px 0; display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: end; }
label { display: block; font-size: 13px; color: var(--faint); }
input, button, select { font: inherit; color: var(--ink); background: var(--paper);
  border: 1px solid var(--faint); border-radius: 4px; padding: 5px 8px; }
input[type=number] { width: 8em; } button { cursor: pointer; }
button.danger { border-color: var(--bad); color: var(--bad); }
.old { color: var(--bad); } footer { max-width: 1120px; margin: 0 auto; padding: 0 20px 40px;
  color: var(--faint); font-size: 13px; }
@media (max-width: 700px) { header { padding: 8px 14px; } main { padding: 12px 14px 24px; }
  h1 { font-size: 21px; } h2 { margin-top: 20px; }
  .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 6px; }
  .tiles li { padding: 5px 7px; } .tiles b { font-size: 16px; } .tiles span { font-size: 11px; }
  .findings p, .findings summary { font-size: 14px; }
  .brokers td:nth-child(2), .brokers td:nth-child(n+9) { display: none; }
  .topics td:nth-child(2), .topics td:nth-child(3), .topics td:nth-child(7) { display: none; }
  tr { padding: 5px 0; } td + td.text { padding-left: 0; } nav { gap: 0 14px; } }
"""
)

JS: Final = """"use strict";
(() => {
  const main = document.querySelector("main"), state = document.getElementById("state");
  const button = document.getElementById("pause"), said = document.getElementById("link");
  let stream = null, paused = false, waiting = null;

  // A swap keeps what the reader does: focus, open details, what is being typed or selected.
  const isBusy = () => {
    const at = document.activeElement, selection = document.getSelection();
    return main.contains(at) && ["INPUT", "SELECT"].includes(at.tagName)
      || selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  };
  const keyOf = (at) =>
    [at.tagName, at.parentElement?.id, at.getAttribute("href"), at.value].join(" ");
  const same = (key) =>
    [...main.querySelectorAll("a, button, summary, .scroll")].filter((at) => keyOf(at) === key);
  const show = (parts) => {
    state.innerHTML = parts.state;
    if (!parts.main) return;
    if (isBusy()) { waiting = parts; return; }
    waiting = null;
    const at = document.activeElement, key = keyOf(at), nth = same(key).indexOf(at);
    const open = [...main.querySelectorAll("details[open]")].map((each) => each.id);
    main.innerHTML = parts.main;
    for (const id of open) { const each = document.getElementById(id); if (each) each.open = true; }
    if (nth >= 0) (same(key)[nth] || same(key)[0] || main).focus({ preventScroll: true });
  };
  main.addEventListener("focusout", () => { if (waiting && !paused) setTimeout(() => {
    if (waiting && !isBusy()) show(waiting); }); });

  const connect = () => {
    const here = location.pathname + location.search;
    stream = new EventSource("/events?view=" + encodeURIComponent(here));
    stream.onopen = () => { said.textContent = ""; };
    stream.onmessage = (event) => {
      const parts = JSON.parse(event.data);
      if (!paused) show(parts); else if (parts.main) waiting = parts;
    };
    stream.onerror = () => {
      said.textContent = "The dashboard does not answer; it is asked again. ";
      if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
    };
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    if (!paused && waiting) show(waiting);
  });
  if (main.dataset.live) connect(); else button.hidden = true;
})();
"""
