from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import pytest

from benchmarks import kip794
from benchmarks.jars import RivalMissing
from trimtab.cli.experiment.kip794 import CONFIGURATIONS


def test_every_configuration_has_one_of_javas_beside_it() -> None:
    assert {kip794.RIVALS.get(name, name) for name in CONFIGURATIONS} == set(kip794.JAVA_SETTINGS)


def test_the_old_partitioner_runs_on_the_old_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kip794, "client_jars", lambda version: Path("/jars") / version)
    monkeypatch.setattr(kip794, "kafka_jars", lambda: Path("/jars/kafka"))
    assert kip794.java_class_path("old") == "/jars/3.2.3/*"
    assert kip794.java_class_path("adaptive") == "/jars/4.4.0/*:/jars/kafka/*"


def test_a_cluster_that_cannot_be_had_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Missing:
        def __init__(self, slow_ms: float) -> None: ...

        def __enter__(self) -> Self:
            raise RivalMissing("no java on PATH")

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(kip794, "KafkaBehindProxy", Missing)
    kip794.measure_all(1, 10, ["apache"], [2], ["free"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["metric"] for line in lines] == [
        f"{metric}, on apache, series 2, free" for metric in kip794.METRICS
    ]
    assert {line["note"] for line in lines} == {"no java on PATH"}
    assert {line["rival"] for line in lines} == {"Java's producer 4.4.0, adaptive"}
