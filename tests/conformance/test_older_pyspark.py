"""What older PySparks do, and what is refused there; see CONTRIBUTING.md, "Older PySparks"."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trimtab import Admin, Cluster, Producer

ENVIRONMENTS = [each for each in os.environ.get("TRIMTAB_PYSPARKS", "").split(":") if each]

PROGRAM = """
import json, sys, tempfile
import pyspark
from trimtab.kafka.errors import UsageError
from trimtab.spark import load
from trimtab.spark.session import start_session
from trimtab.spark.load.inputs import to_arrow, to_frame

servers, found = sys.argv[1], {"version": pyspark.__version__}

def run(name, call):
    try:
        found[name] = call()
    except Exception as error:
        text = str(error)
        found[name] = [line for line in text.splitlines() if "needs PySpark" in line][:1] or text

def session():
    global spark
    spark = start_session("older", cores=2, memory="512m")

def options(flow, topic):
    flow = flow.option("kafka.bootstrap.servers", servers)
    return flow.option("topic", topic)

def read(flow, topic):
    flow = flow.format("trimtab").option("kafka.bootstrap.servers", servers)
    return flow.option("subscribe", topic)

def write():
    rows = spark.range(5).selectExpr("cast(id as string) as value")
    options(rows.write.format("trimtab").mode("append"), "written").save()
    return read(spark.read, "written").load().count()

def stream(frame):
    frame = frame.option("checkpointLocation", tempfile.mkdtemp())
    frame.trigger(availableNow=True).start().awaitTermination()

def read_stream():
    stream(read(spark.readStream, "given").load().writeStream.format("noop"))

def write_stream():
    source = tempfile.mkdtemp() + "/source"
    spark.range(5).selectExpr("cast(id as string) as value").write.parquet(source)
    frame = spark.readStream.schema("value string").parquet(source)
    stream(options(frame.writeStream.format("trimtab"), "streamed"))
    return read(spark.read, "streamed").load().count()

def tables():
    records = read(spark.read.schema(load.RECORDS), "given").load()
    rows = [("given", n, 0, "a") for n in range(2)]
    partitions = to_frame(spark, to_arrow(rows, load.PARTITIONS), load.PARTITIONS)
    return load.partition_load(records, partitions).count()

run("session", session)
if found["session"] is None:
    run("read", lambda: read(spark.read, "given").load().count())
    run("empty", lambda: read(spark.read, "empty").load().count())
    run("write", write)
    run("read stream", read_stream)
    run("write stream", write_stream)
    run("tables", tables)
print(json.dumps(found))
"""


@pytest.mark.skipif(not ENVIRONMENTS, reason="TRIMTAB_PYSPARKS is not set; see CONTRIBUTING.md")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_what_works_and_what_is_refused(environment: str, tmp_path: Path) -> None:
    script = tmp_path / "older.py"
    script.write_text(PROGRAM)
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for topic in ("given", "empty", "written", "streamed"):
                admin.create_topic(topic, partitions=2)
        with Producer(cluster.bootstrap_servers) as producer:
            for n in range(10):
                producer.send("given", b"%d" % n, partition=n % 2)
            producer.flush()
        ended = subprocess.run(
            [f"{environment}/bin/python", str(script), cluster.bootstrap_servers],
            check=False,
            capture_output=True,
            text=True,
        )
    assert ended.stdout, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    version = found["version"]
    major, minor = map(int, version.split(".")[:2])

    def refusal(feature: str, since: str) -> str:
        error = "trimtab.kafka.errors.UsageError"
        return f"{error}: {feature} needs PySpark {since} or later, on the driver"

    if (major, minor) < (4, 0):
        assert found["session"][0].startswith("format('trimtab') needs PySpark 4.0 or later")
        assert f"this is PySpark {version}" in found["session"][0]
        return
    worked = {name: found[name] for name in ("session", "read", "empty", "write", "tables")}
    assert worked == {"session": None, "read": 10, "empty": 0, "write": 5, "tables": 2}
    if (major, minor) < (4, 1):
        assert (
            found["write stream"][0]
            .strip()
            .startswith(refusal("df.writeStream.format('trimtab')", "4.1"))
        )
    else:
        assert found["write stream"] == 5
    if (major, minor) < (4, 2):
        assert (
            found["read stream"][0]
            .strip()
            .startswith(refusal("spark.readStream.format('trimtab')", "4.2"))
        )
    else:
        assert found["read stream"] is None
