"""`python -m lab.benchmarks.judges JUDGE`: other projects' tests of Kafka brokers, run against
trimtab.

- `kafka-python`: the integration tests of the client kafka-python, from its source distribution.
- `client-compatibility`: Apache Kafka's own ClientCompatibilityTest, in Java.

The judges' files are not changed. Each judge runs against a new cluster and prints one JSON line:
the numbers of tests that passed, failed and were skipped, the reason of each failure, and the
failures due to features that trimtab's brokers lack. `--on kafka` runs a judge against Apache
Kafka, to tell a bug of trimtab from a test that cannot pass with these numbers of brokers and
replicas. The exit status is 0 if all tests passed but those of missing features.

Tests of kafka-python that need a single broker run with `--brokers 1 --replication-factor 1`.

pytest also loads this module as a plugin, which passes the running cluster to the suite.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.benchmarks.apache_kafka import KafkaCluster
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, java_command, kafka_jars
from lab.benchmarks.report import progress
from lab.processes import Trimtab
from trimtab import Admin
from trimtab.cluster.config import BROKER
from trimtab.kafka.errors import KafkaError
from trimtab.spark.session.cache import cache_directory

KAFKA_PYTHON_VERSION = "3.0.12"
TEST_SECONDS = 60
"""Seconds for one of kafka-python's tests; on Apache Kafka the longest takes three."""
SUITE_SECONDS = 3600
PROGRAM_SECONDS = 120
"""Seconds for ClientCompatibilityTest, which has no timeouts of its own."""
REASON_LENGTH = 200

PARTITIONS = 4
"""Partitions of each topic; kafka-python's tests rely on this number."""

LEFT_OUT = {
    "test/__init__.py": "",
    "test/service.py": """\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    pass
""",
}
"""Modules that the tests import but the source distribution lacks. No test starts a service."""

FEATURES = {
    "create-topics-supported": True,
    "offsets-for-times-supported": True,
    "cluster-id-supported": True,
    "describe-acls-supported": True,
    "describe-configs-supported": True,
    "idempotent-producer-supported": True,
    "expect-record-too-large-exception": False,
}
"""The features that Apache Kafka's system tests expect of every broker since 2.1."""


WANTING = {
    "an authorizer": ("test_create_describe_delete_acls",),
}
"""Features that trimtab's brokers lack (SKIPPED.md), and kafka-python's tests that need them."""


class Verdict(NamedTuple):
    """The results of a judge.

    Attributes:
        passed: number of tests that passed.
        failures: by test, the reason in one line.
        skips: number of skipped tests, by reason.
    """

    passed: int
    failures: dict[str, str]
    skips: dict[str, int]


# --- the cluster that is judged -------------------------------------------------------------------


def _broker_options(replication_factor: int) -> dict[str, str]:
    """The options of the brokers that kafka-python's tests start themselves."""
    return {
        "num.partitions": str(PARTITIONS),
        "default.replication.factor": str(replication_factor),
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": str(replication_factor),
        "transaction.state.log.replication.factor": str(replication_factor),
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
    }


def _trimtab(brokers: int, replication_factor: int) -> Trimtab:
    """trimtab's brokers, with the options that they support."""
    options = _broker_options(replication_factor)
    known = [f"{name}={value}" for name, value in options.items() if name in BROKER]
    return Trimtab(brokers, config=known)


def _kafka(brokers: int, replication_factor: int) -> KafkaCluster:
    """Apache Kafka with the same options, and with ACLs for kafka-python's tests."""
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    return KafkaCluster(brokers, options={**_broker_options(replication_factor), **acls})


CLUSTERS: dict[str, Callable[[int, int], Trimtab | KafkaCluster]] = {
    "trimtab": _trimtab,
    "kafka": _kafka,
}


# --- kafka-python ---------------------------------------------------------------------------------


def judge_with_kafka_python(arguments: argparse.Namespace, address: str) -> Verdict:
    """Run the integration tests of kafka-python, with the client of the same distribution."""
    suite = _fetch_kafka_python()
    paths = [str(suite / "plugins"), str(Path(__file__).parents[2])]
    if inherited := os.environ.get("PYTHONPATH"):
        paths.append(inherited)
    environment = {
        **os.environ,
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_URI": f"kafka://{address.split(',')[0]}",
        "KAFKA_ROOT": str(suite),  # any directory: nothing is started from it
        "PYTHONPATH": os.pathsep.join(paths),
    }
    with tempfile.TemporaryDirectory(prefix="trimtab-judge-") as work:
        results = Path(work) / "results.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-p", "lab.benchmarks.judges"),
            *("--brokers", str(arguments.brokers)),
            *("--replication-factor", str(arguments.replication_factor)),
            *("--timeout", str(TEST_SECONDS), "--timeout-method", "signal"),
            *("-p", "no:cacheprovider", "-o", "log_level=ERROR", "--show-capture=no"),
            *("-v", "--tb=line", "--color=no", f"--junitxml={results}"),
            *(("-k", arguments.k) if arguments.k else ()),
            "test/integration",
        ]
        try:
            # pytest's output is progress; standard output is for the results.
            subprocess.run(
                command,
                cwd=suite,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                timeout=SUITE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(0, {"all": f"the suite did not end within {SUITE_SECONDS} s"}, {})
        if not results.exists():
            return Verdict(0, {"all": "pytest ended without results"}, {})
        return _read_results(results)


def _fetch_kafka_python() -> Path:
    """The directory of the source distribution; fetches it into trimtab's cache if missing."""
    directory = cache_directory() / f"kafka-python-{KAFKA_PYTHON_VERSION}"
    if directory.exists():
        return directory
    progress(f"fetching kafka-python {KAFKA_PYTHON_VERSION} with pip")
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        _run_pip(
            *("download", "--no-deps", "--no-binary", ":all:", "--dest", work),
            f"kafka-python=={KAFKA_PYTHON_VERSION}",
        )
        (archive,) = Path(work).glob("*.tar.gz")
        shutil.unpack_archive(archive, work, filter="data")
        (suite,) = (each for each in Path(work).iterdir() if each.is_dir())
        # pytest plugins that the tests' configuration needs.
        _run_pip("install", "--no-deps", "--target", str(suite / "plugins"), "pytest-timeout")
        for name, text in LEFT_OUT.items():
            if not (suite / name).exists():
                (suite / name).write_text(text, encoding="utf-8")
        # Rename at the end, so that a partly filled directory is never used.
        suite.rename(directory)
    return directory


def _run_pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RivalMissing(f"pip could not fetch {arguments[-1]}: {done.stdout[-300:]}")


def _read_results(path: Path) -> Verdict:
    """Read pytest's results in JUnit's format, where a test whose teardown failed appears twice."""
    failures: dict[str, str] = {}
    skips: dict[str, str] = {}
    tests = set()
    for case in ElementTree.parse(path).iter("testcase"):
        module = case.get("classname", "").removeprefix("test.integration.")
        name = f"{module}::{case.get('name')}"
        tests.add(name)
        for outcome in case:
            reason = _first_line(outcome.get("message") or "")
            if outcome.tag == "skipped":
                skips[name] = reason
            elif outcome.tag in ("failure", "error"):
                failures.setdefault(name, reason)
    passed = len(tests - failures.keys() - skips.keys())
    return Verdict(passed, failures, dict(Counter(skips.values())))


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest: options that describe the cluster."""
    parser.addoption("--brokers", type=int, default=1)
    parser.addoption("--replication-factor", type=int, default=1)


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of pytest: make the suite use the brokers that KAFKA_URI names."""
    fixtures = importlib.import_module("test.integration.fixtures")

    def use_running_cluster(
        number: int, *, transport: str = "PLAINTEXT", host: str = "", port: int = 0, **_: object
    ) -> Any:
        if transport != "PLAINTEXT":
            pytest.skip(f"needs a listener for {transport}; there are only plaintext ones")
        return fixtures.KafkaFixture(
            *(host, port, number),
            external=True,
            replicas=config.getoption("--replication-factor"),
            partitions=PARTITIONS,
        )

    fixtures.KafkaFixture.instance = use_running_cluster


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin of pytest: skip tests that no cluster of this size can pass, not even Apache
    Kafka's."""
    unfit = _find_unfit(config.getoption("--brokers"), config.getoption("--replication-factor"))
    for item in items:
        if item.name in unfit:
            item.add_marker(pytest.mark.skip(reason=unfit[item.name]))


def _find_unfit(brokers: int, replication_factor: int) -> dict[str, str]:
    """Tests that rely on a single broker with all replicas, and the reason of each."""
    unfit = {}
    if brokers > 1:
        unfit["test_delete_records"] = "wants all partitions from one poll: needs --brokers 1"
    if replication_factor > 1:
        unfit["test_create_partitions"] = (
            "names one replica for each new partition: needs --replication-factor 1"
        )
    if replication_factor < brokers:
        unfit["test_alter_replica_log_dirs"] = (
            "moves a replica that the first broker may not have: needs as many replicas as brokers"
        )
    return unfit


# --- ClientCompatibilityTest ----------------------------------------------------------------------


def judge_with_client_compatibility(arguments: argparse.Namespace, address: str) -> Verdict:
    """Run ClientCompatibilityTest, which ends at the first failure."""
    topic = "client-compatibility"
    try:
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic(topic, partitions=1, replication_factor=arguments.replication_factor)
    except KafkaError as error:
        return Verdict(0, {"ClientCompatibilityTest": _first_line(f"its topic: {error}")}, {})
    command = [
        *java_command("256m", "warn"),
        *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.ClientCompatibilityTest"),
        *("--bootstrap-server", address, "--topic", topic),
        *("--num-cluster-nodes", str(arguments.brokers)),
        *(word for name, there in FEATURES.items() for word in (f"--{name}", str(there).lower())),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(0, {"ClientCompatibilityTest": f"no end within {PROGRAM_SECONDS} s"}, {})
    progress(done.stdout)
    if done.returncode == 0 and "SUCCESS." in done.stdout:
        return Verdict(1, {}, {})
    found = re.search(r"FAILED: .*", done.stdout)
    reason = found[0] if found else done.stdout
    return Verdict(0, {"ClientCompatibilityTest": _first_line(reason)}, {})


# --- the command ----------------------------------------------------------------------------------


class _Judge(NamedTuple):
    run: Callable[[argparse.Namespace, str], Verdict]
    version: str


JUDGES: Mapping[str, _Judge] = {
    "kafka-python": _Judge(judge_with_kafka_python, KAFKA_PYTHON_VERSION),
    "client-compatibility": _Judge(judge_with_client_compatibility, KAFKA_VERSION),
}


def _find_wanting(failures: Mapping[str, str]) -> dict[str, list[str]]:
    """The expected failures of trimtab's brokers, by missing feature."""
    failed = {name.rpartition("::")[2]: name for name in failures}
    found = {
        what: [failed[test] for test in tests if test in failed] for what, tests in WANTING.items()
    }
    return {what: tests for what, tests in found.items() if tests}


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason")[:REASON_LENGTH]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.judges",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("judge", choices=JUDGES)
    parser.add_argument("--brokers", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--replication-factor", type=int, default=3, metavar="N", help="of topics (default: 3)"
    )
    parser.add_argument("--on", choices=CLUSTERS, default="trimtab", help="default: trimtab")
    parser.add_argument("-k", metavar="EXPRESSION", help="of kafka-python's tests, only these")
    arguments = parser.parse_args(words)
    judge = JUDGES[arguments.judge]
    try:
        with CLUSTERS[arguments.on](arguments.brokers, arguments.replication_factor) as cluster:
            verdict = judge.run(arguments, cluster.address)
    except RivalMissing as missing:
        parser.error(f"{arguments.judge} is not available: {missing}")
    wanting = _find_wanting(verdict.failures) if arguments.on == "trimtab" else {}
    unexpected = len(verdict.failures) - sum(map(len, wanting.values()))
    line = {
        "judge": f"{arguments.judge} {judge.version}",
        "on": arguments.on,
        "brokers": arguments.brokers,
        "replication_factor": arguments.replication_factor,
        "passed": verdict.passed,
        "failed": len(verdict.failures),
        "skipped": sum(verdict.skips.values()),
        "failures": verdict.failures,
        "failed_for_want_of": wanting,
        "skips": verdict.skips,
    }
    print(json.dumps(line), flush=True)
    return 1 if unexpected or not verdict.passed else 0


if __name__ == "__main__":
    sys.exit(main())
