"""A local Spark session that is quiet, small, bound to this machine, and ends when told to."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trimtab.errors import UsageError
from trimtab.spark.session.cache import cache_directory, write_atomically
from trimtab.spark.session.java import find_java_home

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


@contextmanager
def local_session(
    app: str,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """`start_session`, and `stop_session` at the end of the block, on SIGINT and SIGTERM at once.

    Raises:
        KeyboardInterrupt: one of these signals came.
        Unavailable: no Java 17 or later.
    """
    session = start_session(app, cores, memory, config)
    with _interrupts_end_jvm():
        try:
            yield session
        finally:
            stop_session(session)


@contextmanager
def any_session(
    app: str,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The session that there is: this process's, else that of spark-submit or of Spark Connect
    (SPARK_REMOTE); else a local one, made as `start_session` does.

    What the block finds stays, what it makes ends with it. Signals are left to the caller.

    Raises:
        Unavailable: no Java 17 or later.
        UsageError: PySpark or PyArrow is not installed.
    """
    check_packages()
    from pyspark.sql import SparkSession

    from trimtab.spark import register

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
    elif is_given():
        with _interrupts_deferred():  # and the caller's handlers stay, in place of PySpark's
            session = SparkSession.builder.appName(app).getOrCreate()
        try:
            register(session)
            yield session
        finally:
            _stop_given(session)
    else:
        session = start_session(app, cores, memory, config)
        try:
            yield session
        finally:
            stop_session(session)


def _stop_given(session: SparkSession) -> None:
    """Stop a session of spark-submit or Spark Connect.

    Ctrl-C and SIGTERM reach spark-submit, too: then there is nothing left to stop.
    """
    try:
        session.stop()
    except Exception:
        if not has_lost_jvm():
            raise


def has_lost_jvm() -> bool:
    """Whether the JVM of this process's session does not answer any more."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:
        return False
    try:
        jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return True
    return False


def end_jvm_at_once() -> None:
    """End the JVM that `start_session` has started, whatever it does; nothing if there is none."""
    process = _jvm_process()
    if process is not None:
        process.terminate()  # it removes its files yet


def is_given() -> bool:
    """Whether this process was started by spark-submit, or is to use Spark Connect."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def start_session(
    app: str,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in local mode with the Python that runs this, and trimtab as a format.

    Finds a Java runtime itself (`java.py`), listens on 127.0.0.1 only, logs errors only.
    End it with `stop_session`.

    Args:
        app: the application's name.
        cores: how many tasks run at a time; default: as many as the machine has cores.
        memory: heap of the JVM, as Spark writes it (`512m`, `2g`).
        config: more of Spark's settings; they win over the ones made here.

    Raises:
        Unavailable: no Java 17 or later.
        UsageError: PySpark or PyArrow is not installed.
    """
    check_packages()
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
        with warnings.catch_warnings():
            # That it could not shut the JVM down, after an interruption: we do.
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    finally:
        _end_jvm()


def check_packages() -> None:
    """Whether Spark can be started.

    Raises:
        UsageError: PySpark or PyArrow is not installed.
    """
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"Spark needs packages that are not installed: pip install {' '.join(missing)}"
        )


def check_local_options(cores: int | None, memory: str | None) -> None:
    """Check a command's --cores and --memory, which are of the local mode alone.

    Raises:
        UsageError: there can be no such session, or it is not ours to size.
    """
    if cores is not None and cores < 1:
        raise UsageError(f"--cores {cores}: write 1 or more")
    given = {"--cores": cores, "--memory": memory}
    local = [name for name, value in given.items() if value is not None]
    if local and is_given():
        raise UsageError(
            f"{' and '.join(local)} is for Spark's local mode: give spark-submit its own options,"
            " such as --executor-memory 4g"
        )


def _end_jvm() -> None:
    from pyspark import SparkContext

    process, gateway = _jvm_process(), SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None or process is None:
        return
    try:
        gateway.shutdown()
        assert process.stdin is not None  # PySpark made it a pipe
        process.stdin.close()  # the JVM ends with its input
        process.wait(_END_SECONDS)
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()


def _jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM of this process's session; None if there is none, or somebody else started it."""
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


@contextmanager
def _interrupts_end_jvm() -> Iterator[None]:
    """Have SIGINT and SIGTERM end the JVM, and with it whatever waits for a job to be done.

    An interruption alone does not: PySpark goes on to wait until the job has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        process = _jvm_process()
        if process is not None:
            process.terminate()
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        if is_interrupted:  # nothing but a call that lost its JVM
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block is done.

    While Spark starts its JVM nobody else knows of it: an interrupted start would leave it behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    arrived: list[int] = []

    def note(number: int, _: object) -> None:
        arrived.append(number)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
