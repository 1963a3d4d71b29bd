"""Results as text, as Kafka's tables and as JSON."""

from __future__ import annotations

import argparse

import pytest

from trimtab.cli.options import refuse_both, refuse_misplaced
from trimtab.cli.results import (
    Failures,
    TableColumn,
    print_result,
    take_refusals,
    write_columns,
    write_fields,
)
from trimtab.client.admin import PartlyRefused
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError


def test_a_result_is_text_or_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    for is_json in (False, True):
        print_result(argparse.Namespace(json=is_json), {"topic": "t", "id": None}, "topic t")
    assert capsys.readouterr().out == 'topic t\n{"topic": "t", "id": null}\n'


def test_a_column_keeps_its_width_or_fits_its_cells() -> None:
    columns = [
        TableColumn("A", "a", 3, fits=True),
        TableColumn("B", "b", 3),
        TableColumn("C", "c", show=lambda value: value or None),
    ]
    rows: list[dict[str, str | None]] = [
        {"a": "long", "b": "longer", "c": ""},
        {"a": "x", "b": None, "c": "end"},
    ]
    assert write_columns(columns, rows) == ["A    B   C", "long longer -", "x    -   end"]
    assert write_columns(columns, []) == ["A   B   C"]


def test_fields_have_kafkas_names_and_javas_booleans() -> None:
    fields = {"codec": "none", "isValid": True, "size": 0}
    assert write_fields(fields, {"isValid": "isvalid"}) == "codec: none isvalid: true size: 0"


def test_what_is_refused_is_told_beside_what_is_done() -> None:
    error = BrokerError(ErrorCode.INVALID_REQUEST, "", "b")

    def ask() -> dict[str, int]:
        raise PartlyRefused({"b": error}, {"a": 1})

    assert take_refusals(ask) == ({"a": 1}, {"b": error})
    assert take_refusals(lambda: 2) == (2, {})


def test_an_option_goes_with_its_verbs_also_if_its_value_is_zero() -> None:
    given = argparse.Namespace(node_id=0, dry_run=False, feature=[], all_topics=True)
    verbs = {"node_id": ("describe",), "dry_run": ("upgrade",), "feature": ("upgrade",)}
    refuse_misplaced(given, verbs, "describe")
    with pytest.raises(UsageError, match="--node-id goes with describe, not with upgrade"):
        refuse_misplaced(given, verbs, "upgrade")
    refuse_both(given, "all_topics", "feature")
    with pytest.raises(UsageError, match="--all-topics and --node-id are both given: give one"):
        refuse_both(given, "all_topics", "node_id")


def test_without_failures_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert Failures().report(10) == 0
    assert capsys.readouterr().err == ""


def test_failures_are_counted_and_the_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    failures.count_failure(Unavailable("first"))
    failures.count_failure(Unavailable("second"))
    assert failures.report(10) == 1
    assert capsys.readouterr().err == "2 of 10 records failed; the first: first\n"
