"""A local Spark session that is quiet, small, bound to this machine, and ends when told to."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    try:
        with _interrupts_deferred():
            session = builder.getOrCreate()
        register(session)
    except BaseException:
        _end_jvm()
        raise
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and the JVM under it, and wait until it has ended.

    `SparkSession.stop` alone leaves the JVM up until this process ends.
    """
    try:
        session.stop()
    finally:
        _end_jvm()


def _end_jvm() -> None:
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    process = getattr(gateway, "proc", None)  # none if nothing, or somebody else, started it
    if gateway is None or process is None:
        return
    try:
        gateway.shutdown()
        process.stdin.close()  # the JVM ends with its input
        process.wait(_END_SECONDS)
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let signals wait until the block is done.

    While Spark starts its JVM nobody else knows of it: an interrupted start would leave it behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, _: arrived.append(number)) for each in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
