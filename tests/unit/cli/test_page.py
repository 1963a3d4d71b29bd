"""Pages: what every report is made of."""

from __future__ import annotations

from trimtab.cli.page import in_both_widths, to_page, to_table


def test_a_page_is_a_document_with_its_style() -> None:
    page = to_page("a <title>", "<p>text</p>")
    assert page.startswith("<!doctype html>")
    assert "<title>a &lt;title&gt;</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media (max-width: 700px)" in page
    assert "url(" not in page


def test_cells_are_escaped_and_named() -> None:
    rows = [["x<y", "1"], ["", "2"]]
    table = to_table(["A & B", "n"], rows, text_columns=[0], group_by_first=True)
    assert '<td class="text" data-head="A &amp; B">x&lt;y</td><td data-head="n">1</td>' in table
    assert table.count('<tr class="group">') == 1


def test_a_plot_is_there_for_a_desk_and_for_a_phone() -> None:
    drawn = in_both_widths(lambda layout: f"{layout.width}")
    assert drawn == '<div class="wide">880</div><div class="narrow">350</div>'
