"""The pages of the documentation run as they are written, and print what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import SECONDS, read_page, run_page
from trimtab import Cluster, Producer
from trimtab.spark.session.java import find_java_home


@pytest.mark.parametrize(
    ("page", "expectations"),
    [
        ("docs/start.md", 7),
        ("docs/partitioners.md", 1),
        ("docs/production.md", 2),
        ("docs/balance.md", 5),
        ("docs/keys.md", 7),
        ("docs/what-if.md", 2),
        ("docs/read.md", 4),
        ("docs/records.md", 6),
        ("docs/from-spark-connector.md", 1),
    ],
)
def test_a_page_prints_what_it_says(page: str, expectations: int, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) == expectations


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_program_for_a_secured_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are taken; nobody has its address, so nothing is sent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    certificate = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out authority.pem -subj /CN=a"
    subprocess.run(["openssl", *certificate.split()], check=True, capture_output=True)
    (block,) = (each for each in read_page("docs/production.md") if each.title == "secured.py")
    typed: dict[str, Any] = {}
    exec(block.text, typed)
    typed["new_producer"]().close()


def test_the_job_for_a_spark_cluster_counts_the_topic(tmp_path: Path) -> None:
    """In local mode; tests/spark/test_standalone.py has a cluster of Spark's own."""
    (job,) = (each for each in read_page("docs/production.md") if each.title == "job.py")
    (tmp_path / "job.py").write_text(job.text, encoding="utf-8")
    with Cluster(brokers=1) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(1000):
                producer.send("departures", b"%d" % number)
        env = {
            **os.environ,
            "JAVA_HOME": str(find_java_home()),
            "KAFKA_SERVERS": cluster.bootstrap_servers,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        done = subprocess.run(
            [sys.executable, "job.py"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "1000 departures\n"), done.stderr
