"""A local Spark session that is quiet, small, bound to this machine, and ends when told to."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trimtab.spark.cache import cache_directory, write_atomically
from trimtab.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PythonGatewayServer takes itself for a shell and says so, unless its level is given.
_LOGGING = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

_END_SECONDS = 30


def start_session(
    app: str,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in local mode with the Python that runs this, and trimtab as a format.

    Finds a Java runtime itself (`trimtab.spark.java`), listens on 127.0.0.1 only, logs errors only.
    End it with `stop_session`.

    Args:
        app: the application's name.
        cores: how many tasks run at a time; default: as many as the machine has cores.
        memory: heap of the JVM, as Spark writes it (`512m`, `2g`).
        config: more of Spark's settings; they win over the ones made here.

    Raises:
        Unavailable: no Java 17 or later.
    """
    from pyspark.sql import SparkSession

    from trimtab.spark import register

    home = find_java_home()
    directory = cache_directory()
    logging = directory / "log4j2.properties"
    write_atomically(logging, _LOGGING.encode())
    cores = cores or os.cpu_count() or 1
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Else Spark looks the machine's own name up, which may hang or warn.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Nothing here uses Hive; without this a warehouse directory appears where one stands.
        "spark.sql.catalogImplementation": "in-memory",
        **(config or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and the JVM under it, and wait until it has ended.

    `SparkSession.stop` alone leaves the JVM up until this process ends.
    """
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.shutdown()
    process = getattr(gateway, "proc", None)  # absent if somebody else started the JVM
    if process is None:
        return
    process.stdin.close()  # the JVM ends with its input
    try:
        process.wait(_END_SECONDS)
    except BaseException:
        process.kill()
        raise
