from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import pytest

from lab.benchmarks import kip480, kip794, proposals
from lab.benchmarks.jars import RivalMissing


def test_every_configuration_has_one_of_javas_beside_it() -> None:
    for stage in (kip480.PROPOSAL, kip794.PROPOSAL):
        named = {stage.rivals.get(name, name) for name in stage.settings}
        assert named == set(stage.java_settings)


def test_the_old_partitioner_runs_on_the_old_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "client_jars", lambda version: Path("/jars") / version)
    monkeypatch.setattr(proposals, "kafka_jars", lambda: Path("/jars/kafka"))
    assert proposals.java_class_path("sticky") == "/jars/3.2.3/*"
    assert proposals.java_class_path("adaptive") == "/jars/4.4.0/*:/jars/kafka/*"


def test_a_cluster_that_cannot_be_had_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Missing:
        def __init__(self, *of: object) -> None: ...

        def __enter__(self) -> Self:
            raise RivalMissing("no java on PATH")

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(proposals, "KafkaCluster", Missing)
    proposals.measure_all(kip794.PROPOSAL, 1, 10, ["apache"], [2], ["free"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["metric"] for line in lines] == [
        f"{metric}, on apache, series 2, free" for metric in kip794.PROPOSAL.metrics
    ]
    assert {line["note"] for line in lines} == {"no java on PATH"}
    assert {line["rival"] for line in lines} == {"Java's producer 4.4.0, adaptive"}
