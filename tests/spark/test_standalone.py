"""A cluster of Spark's own: a master and two workers, whose executors get trimtab by `--archives`.

Everything of Spark's runs from a copy outside this environment and with a Python that has neither
PyArrow nor trimtab, so what the executors have comes from the archive. With `PACKAGING=1`
(environment; `.ci/run` sets it) the wheel in it is compiled, and PySpark 4.3 and Spark Connect are
tried as well, in an environment of their own that pip fills.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks.standalone import standalone
from trimtab import Admin, Cluster, Producer
from trimtab.spark.session.java import find_java_home

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "flights"
PARTITIONS, COUNT = 2, 200
"""The topic's partitions, and the records in each."""
VALUE = b"value"
PATIENCE = 900
pytestmark = pytest.mark.timeout(2 * PATIENCE)
DEPENDENCIES = ("pyarrow", "cramjam", "crc32c", "uvloop", "cython")
"""What the wheel needs of others, taken from this environment instead of from an index."""
RACK = "rack-of-the-executors"

APP = """
import json, os, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

servers, topic, target, checkpoint = sys.argv[1:5]
builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2")
remote = os.environ.get("TRY_REMOTE")
spark = (builder.remote(remote) if remote else builder).getOrCreate()
try:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "minPartitions": "6"}
    options |= json.loads(os.environ.get("TRY_OPTIONS", "{}"))

    def read():
        return spark.read.format("trimtab").options(**options).load()

    def where(partition):
        import os
        import trimtab
        from trimtab.kafka.wire import records_cy
        return json.dumps({
            "trimtab": os.path.realpath(trimtab.__file__),
            "directory": os.getcwd(),
            "path": [os.path.realpath(each) for each in sys.path],
            "compiled": not records_cy.__file__.endswith(".py"),
        })

    here = udf(where, "string")("partition").alias("here")
    places = read().select(here).distinct().collect()
    described = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW seen USING trimtab OPTIONS ({described})")
    seen = spark.sql(
        "SELECT count(*), sum(offset), count(DISTINCT partition), sum(length(value)) FROM seen"
    ).collect()
    try:
        spark.sql(f"CREATE TABLE kept USING trimtab OPTIONS ({described})")
        refusal = ""
    except Exception as error:
        refusal = str(error)
    sink = {"kafka.bootstrap.servers": servers, "topic": target}
    read().select("value").write.format("trimtab").mode("append").options(**sink).save()
    stream = spark.readStream.format("trimtab").options(**options)
    query = (
        stream.option("startingOffsets", "earliest").option("maxBytesPerTrigger", "10k").load()
        .select("value").writeStream.format("trimtab").options(**sink)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    copies = spark.read.format("trimtab").options(**{**options, "subscribe": target}).load()
    print("RESULT " + json.dumps({
        "copied": copies.count(),
        "batches": query.lastProgress["batchId"] + 1,
        "version": spark.version,
        "seen": list(seen[0]),
        "places": [json.loads(row.here) for row in places],
        "refusal": refusal,
    }))
finally:
    spark.stop()
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(PARTITIONS * COUNT):
                producer.send(TOPIC, VALUE, partition=number % PARTITIONS)
        yield cluster.bootstrap_servers


def run_app(python: list[str], servers: str, environment: Mapping[str, str], at: Path) -> Any:
    """What `APP` prints, with a topic and a checkpoint of its own."""
    at.mkdir(exist_ok=True)
    (at / "app.py").write_text(APP)
    target = f"copies-{at.name}"
    with Admin(servers) as admin:
        admin.create_topic(target, partitions=PARTITIONS)
    arguments = (str(at / "app.py"), servers, TOPIC, target, str(at / "checkpoint"))
    return result(call([*python, *arguments], environment, at))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes into the tree it packs."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    form = "TRIMTAB_REQUIRE_COMPILED" if packs() else "TRIMTAB_PURE"
    environment = {**os.environ, form: "1", "CFLAGS": "-O0 -g0"}
    call([sys.executable, "setup.py", "--quiet", "bdist_wheel"], environment, tree)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install --target` makes of the wheel: it and what it needs, but for PySpark."""
    directory = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    call([*pip, "install", "--no-deps", "--target", str(directory), str(wheel)], os.environ)
    for name in DEPENDENCIES:
        for path in metadata.files(name) or ():
            if path.parts[0] != ".." and "tests" not in path.parts and path.suffix != ".pyc":
                target = directory / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path.locate(), target)
    return directory


@pytest.fixture(scope="module")
def archive(site: Path) -> Path:
    packed = site.with_name("trimtab-environment.tar")
    with tarfile.open(packed, "w") as tar:
        for path in sorted(site.iterdir()):
            tar.add(path, path.name)
    return packed


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark as an administrator installs it: not inside this environment."""
    import pyspark

    home = tmp_path_factory.mktemp("opt") / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, home, copy_function=link)
    return home


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def packs() -> bool:
    return os.environ.get("PACKAGING") == "1"


def call(command: list[str], environment: Mapping[str, str], directory: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def clean_environment(**more: str) -> dict[str, str]:
    """Nothing that leads to this environment."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        **more,
    }


def check(found: dict[str, Any]) -> None:
    total = PARTITIONS * COUNT
    offsets = PARTITIONS * COUNT * (COUNT - 1) // 2
    assert found["seen"] == [total, offsets, PARTITIONS, total * len(VALUE)]
    assert "CREATE TEMPORARY VIEW" in found["refusal"]
    assert found["copied"] == 2 * total
    assert found["batches"] >= 1


def result(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_executors_of_a_standalone_cluster_have_what_the_archive_holds(
    servers: str, site: Path, archive: Path, spark_home: Path, tmp_path: Path
) -> None:
    python = str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    options = {"clientRack": "env:RACK"}
    with standalone(spark_home, tmp_path, clean_environment()) as url:
        found = run_app(
            [
                *(str(spark_home / "bin" / "spark-submit"), "--master", url),
                *("--archives", f"{archive}#trimtab_environment"),
                *("--conf", "spark.executorEnv.PYTHONPATH=trimtab_environment"),
                *("--conf", f"spark.executorEnv.RACK={RACK}"),
                *("--conf", f"spark.pyspark.python={python}"),
                *("--conf", "spark.driver.host=127.0.0.1"),
                *("--conf", "spark.ui.enabled=false"),
                *("--conf", "spark.executor.memory=512m"),
            ],
            servers,
            clean_environment(PYTHONPATH=str(site), TRY_OPTIONS=json.dumps(options)),
            tmp_path / "archives",
        )
    check(found)
    places = found["places"]
    workers = {Path(place["directory"]).parents[1].name for place in places}
    assert workers == {"worker-0", "worker-1"}
    environment = Path(sys.prefix).resolve()
    for place in places:
        assert place["trimtab"].startswith(place["directory"])
        assert place["compiled"] == packs()
        assert not [each for each in place["path"] if environment in Path(each).parents]


@pytest.mark.skipif(not packs(), reason="installs PySpark; asked for by PACKAGING=1")
@pytest.mark.parametrize(
    ("version", "ways"), [("4.2.0", ["connect"]), ("4.3.0", ["classic", "connect"])]
)
def test_pyspark_and_spark_connect(
    servers: str, wheel: Path, tmp_path: Path, version: str, ways: list[str]
) -> None:
    """Batch and stream, source and sink, in an environment that pip fills. What this environment
    has in the same version is not copied; trimtab is the wheel's."""
    venv.create(tmp_path / "other", with_pip=True)
    (site,) = (tmp_path / "other").glob("lib/python*/site-packages")
    python = str(tmp_path / "other" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile"]
    call([*pip, "--no-deps", str(wheel)], os.environ)
    if metadata.version("pyspark") == version:
        (site / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    call([*pip, f"{wheel}[spark]", f"pyspark[connect]=={version}"], os.environ)
    environment = clean_environment(
        PATH=f"{tmp_path / 'other' / 'bin'}:/usr/bin:/bin",
        PYSPARK_PYTHON=python,
        PYSPARK_SUBMIT_ARGS="--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    )
    for way in ways:
        remote = {"TRY_REMOTE": "local[2]"} if way == "connect" else {}
        at = tmp_path / f"{way}-{version}"
        found = run_app([python], servers, {**environment, **remote}, at)
        assert found["version"] == version
        assert {place["compiled"] for place in found["places"]} == {True}
        assert all(Path(place["trimtab"]).is_relative_to(site) for place in found["places"])
        check(found)
