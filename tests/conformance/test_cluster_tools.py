"""The same command lines with Apache Kafka's tools and with trimtab's, about brokers and features:
on trimtab's cluster, of which a broker is down, and on Apache Kafka."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, call_java
from tests.kafka import needs_kafka
from trimtab import Cluster
from trimtab.cli import main
from trimtab.cli.features import RELEASES

pytestmark = needs_kafka

TOOLS = {
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "features": "org.apache.kafka.tools.FeatureCommand",
}


@pytest.fixture(scope="module", params=["trimtab", "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
        yield kafka.address
        return
    with Cluster(brokers=3, racks=["a", "a-long-rack", "c"]) as cluster:
        cluster.stop_broker(2)
        yield cluster.bootstrap_servers


def run_both(
    capfd: pytest.CaptureFixture[str], command: str, *words: str
) -> list[tuple[int, list[str]]]:
    """Exit codes and lines of standard output: trimtab's, then Kafka's."""
    code = main([command, *words])
    ours = capfd.readouterr().out
    errors = subprocess.DEVNULL
    done = call_java(TOOLS[command], *words, heap="128m", level="off", stderr=errors)
    return [(code, ours.splitlines()), (done.returncode, done.stdout.splitlines())]


@pytest.mark.parametrize(
    "words", ["cluster-id", "list-endpoints", "list-endpoints --include-fenced-brokers"]
)
def test_brokers_are_listed_alike(
    servers: str, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    ours, theirs = run_both(capfd, "cluster", *words.split(), "--bootstrap-server", servers)
    assert ours[0] == 0
    assert (theirs[0], sorted(theirs[1])) == (0, sorted(ours[1]))
    assert len(ours[1]) > (words != "cluster-id")


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        ("describe", 0, 7),
        ("upgrade --feature transaction.version=2 --dry-run", 0, 1),
        ("downgrade --feature transaction.version=1 --dry-run", 0, 1),
        ("disable --feature streams.version --dry-run", 0, 1),
        ("upgrade --feature transaction.version=99", 1, 1),
        ("upgrade --release-version 4.0-IV1 --dry-run", 1, 3),
    ],
)
def test_features_are_shown_and_changed_alike(
    servers: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    words: str,
    code: int,
    lines: int,
) -> None:
    ours, theirs = run_both(capfd, "features", "--bootstrap-server", servers, *words.split())
    if "trimtab" in request.node.callspec.params.values():  # it has fewer features
        code, lines = theirs[0], len(theirs[1])
        assert lines > 0
    assert (ours[0], len(ours[1])) == (code, lines)
    # Apache Kafka raises the epoch twice a second. The reason is that of the first update which is
    # refused, and the tools send them in different orders.
    told = [
        [re.split("Epoch: |Invalid", line)[0] for line in each] for each in (ours[1], theirs[1])
    ]
    assert (theirs[0], told[1]) == (code, told[0])


@pytest.mark.parametrize("release", ["3.3-IV3", "3.9", "4.0-IV1", "4.0", "4.1", "4.2-IV0", "4.3"])
def test_releases_have_the_same_levels(release: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("version-mapping", "--release-version", release)
    assert main(["features", *words]) == 0
    ours = capfd.readouterr().out
    assert ours == call_java(TOOLS["features"], *words, heap="128m", level="off").stdout


def test_the_newest_release_is_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "version-mapping"]) == 0
    ours = capfd.readouterr().out
    assert f"({RELEASES[-1]})" in ours
    theirs = call_java(TOOLS["features"], "version-mapping", heap="128m", level="off")
    assert ours == theirs.stdout
