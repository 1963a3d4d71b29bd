// What the theme's scripts add is not yet fit for a keyboard and a screen reader.
function mend() {
  for (const buttons of document.querySelectorAll("nav.md-code__nav")) buttons.setAttribute("role", "none");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
}
new MutationObserver(mend).observe(document.documentElement, {childList: true, subtree: true});
mend();
