"""The pytest plugin: a Kafka cluster for tests, with topics and groups of each test's own.

    def test_an_order_is_sent(kafka_cluster, kafka_topic, kafka_records):
        send_order(kafka_cluster.bootstrap_servers, kafka_topic)
        assert [record.value for record in kafka_records(kafka_topic, count=1)] == [b"order 1"]

pytest loads it by itself in an environment that has trimtab (entry point `pytest11`). Its fixtures:

    kafka_options       arguments of `Cluster`; override it to have more brokers, racks or options
    kafka_cluster       one cluster for the session, started by the first test that uses it
    kafka_topic         the name of a new topic; `@pytest.mark.kafka_topic(partitions=3)`
    kafka_group         the name of a group that nobody else uses
    kafka_records       reads the records of a topic
    assert_produces     asserts which records a block of code produces
    assert_even         asserts that keys spread records evenly over partitions; needs no cluster
    kafka_faults        slow, dead and separate brokers, and full disks, until the end of the test
    virtual_kafka       a cluster in virtual time, in `@pytest.mark.virtual_time` tests
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from errno import EADDRINUSE
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:  # every run of pytest imports this module: what fixtures need is imported by them
    from trimtab.client.blocking.admin import Admin
    from trimtab.cluster.embedded import Cluster
    from trimtab.pytest.evenness import AssertEven
    from trimtab.pytest.faults import Faults
    from trimtab.pytest.reading import AssertProduces, ReadRecords, TopicReader
    from trimtab.pytest.virtual import VirtualKafka
    from trimtab.sim.world import World

__all__ = [
    "assert_even",
    "assert_produces",
    "kafka_cluster",
    "kafka_faults",
    "kafka_group",
    "kafka_options",
    "kafka_records",
    "kafka_topic",
    "virtual_kafka",
]

_MARKS = (
    "kafka_topic(partitions=1, replication_factor=-1, config={}): the topic of the fixture "
    "kafka_topic (trimtab)",
    "virtual_time(seed=0, brokers=3, config={}, limit_s=86400): run the async test in virtual "
    "time, limit_s virtual seconds at most; brokers and config are those of the fixture "
    "virtual_kafka (trimtab)",
)
_STARTED_WITH = pytest.StashKey[Mapping[str, Any]]()
"""The options of the session's cluster."""
_INSIDE = re.compile(r"(trimtab|asyncio|concurrent\.futures)(\.|$)")
"""The modules of which tracebacks show no line."""
_NAME_CHARACTERS = 200
"""Of a topic or group at most, before what makes it unique: Kafka allows 249."""


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


# One cluster for the session


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """The arguments of `Cluster`: one broker by default. A `conftest.py` may override it:

    @pytest.fixture(scope="session")
    def kafka_options():
        return {"brokers": 3, "racks": ["a", "b", "c"]}
    """
    return {}


@pytest.fixture(scope="session")
def kafka_cluster(
    request: pytest.FixtureRequest, kafka_options: Mapping[str, Any]
) -> Iterator[Cluster]:
    """The `Cluster`; its `bootstrap_servers` are for any Kafka client.

    With pytest-xdist every worker has a cluster of its own.
    """
    from trimtab.cluster.embedded import Cluster

    request.config.stash[_STARTED_WITH] = kafka_options
    cluster = Cluster(**kafka_options)
    try:
        cluster.start()
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        pytest.fail(
            f"kafka_options={kafka_options}: {error.strerror or error}. Each worker of pytest-xdist"
            " starts a cluster: leave `ports` out and read kafka_cluster.bootstrap_servers, or "
            "give each worker its own by the fixture worker_id",
            pytrace=False,
        )
    yield cluster
    cluster.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test whose own `kafka_options` came too late: the cluster is there already."""
    fixtures: Mapping[str, Any] = getattr(item, "funcargs", {})
    if "kafka_cluster" not in fixtures or "kafka_options" not in fixtures:
        return
    started = item.config.stash.get(_STARTED_WITH, None)
    wanted = fixtures["kafka_options"]
    if started is not None and wanted != started:
        pytest.fail(
            f"kafka_options={wanted}: the session's cluster was started with {started}. One "
            "cluster serves all tests: put kafka_options into the outermost conftest.py, or run "
            "these tests by themselves",
            pytrace=False,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Leave trimtab's lines out of the traceback of one of its errors, without --full-trace: the
    caller's line and the message tell what to do."""
    error = call.excinfo
    if error is None or item.config.option.fulltrace:
        return
    if not type(error.value).__module__.startswith("trimtab."):
        return
    entries: list[TracebackType] = []
    entry: TracebackType | None = error.tb
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    shown: TracebackType | None = None
    for entry in reversed(entries):
        if not _INSIDE.match(entry.tb_frame.f_globals.get("__name__", "")):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    if shown is not None:
        call.excinfo = pytest.ExceptionInfo.from_exc_info((error.type, error.value, shown))


@pytest.fixture(scope="session")
def _kafka_admin(kafka_cluster: Cluster) -> Iterator[Admin]:
    from trimtab.client.blocking.admin import Admin

    with Admin(kafka_cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(scope="session")
def _kafka_reader(kafka_cluster: Cluster) -> Iterator[TopicReader]:
    from trimtab.pytest.reading import TopicReader

    reader = TopicReader(kafka_cluster.bootstrap_servers)
    yield reader
    reader.close()


# For one test


@pytest.fixture
def kafka_topic(
    request: pytest.FixtureRequest, _kafka_admin: Admin, kafka_faults: Faults
) -> Iterator[str]:
    """The name of a new topic, which is deleted after the test.

    It has one partition, or what the test says: `@pytest.mark.kafka_topic(partitions=3,
    replication_factor=2, config={"cleanup.policy": "compact"})`.
    """
    from trimtab.kafka.errors import BrokerError, ErrorCode

    name = _unique_name(request.node)
    options = _read_mark(request.node, "kafka_topic", _topic_options)
    _kafka_admin.create_topic(name, **options)
    yield name
    kafka_faults.end_faults()  # a dead broker would delay the deletion
    try:
        _kafka_admin.delete_topic(name)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # the test may have deleted it
            raise


def _topic_options(
    partitions: int = 1, replication_factor: int = -1, config: Mapping[str, object] | None = None
) -> None:
    """The options of the mark `kafka_topic`."""


@pytest.fixture
def kafka_group(request: pytest.FixtureRequest) -> str:
    """The name of a consumer group, or a transactional id, that nobody else uses."""
    return _unique_name(request.node)


@pytest.fixture
def kafka_faults(kafka_cluster: Cluster) -> Iterator[Faults]:
    """Makes brokers slow, ends them, cuts them off and fills their disks; after the test all are
    up, quick and together again."""
    from trimtab.pytest.faults import Faults

    faults = Faults(kafka_cluster)
    yield faults
    faults.end_faults()


@pytest.fixture
def kafka_records(_kafka_reader: TopicReader) -> ReadRecords:
    """A function that returns the records of a topic: `kafka_records(topic)`.

    Its arguments and errors: `trimtab.pytest.reading.ReadRecords`.
    """
    from trimtab.pytest.reading import ReadRecords

    return ReadRecords(_kafka_reader)


@pytest.fixture
def assert_produces(_kafka_reader: TopicReader) -> AssertProduces:
    """A context manager that asserts which records its block produces:

        with assert_produces(kafka_topic, [b"order 1", b"order 2"]):
            send_orders()

    Its arguments and errors: `trimtab.pytest.reading.expect_records`.
    """
    from trimtab.pytest.reading import expect_records

    return partial(expect_records, _kafka_reader)


@pytest.fixture(scope="session")
def assert_even() -> AssertEven:
    """Asserts that a sample of keys spreads records evenly; needs no cluster:

        assert_even([order.user for order in orders], partitions=48, worst=1.3)

    Its arguments and errors: `trimtab.pytest.evenness.expect_even`.
    """
    from trimtab.pytest.evenness import expect_even

    return expect_even


# In virtual time


@pytest.fixture
def _virtual_world(request: pytest.FixtureRequest) -> Iterator[World]:
    from trimtab.pytest.virtual import virtual_options
    from trimtab.sim.world import World

    mark = _read_mark(request.node, "virtual_time", virtual_options)
    with World(mark["seed"], shown_events=0) as world:
        yield world


@pytest.fixture
def virtual_kafka(request: pytest.FixtureRequest) -> Iterator[VirtualKafka]:
    """The `VirtualKafka` of a test that is marked with `virtual_time`: its `bootstrap_servers`, and
    faults."""
    from trimtab.pytest.virtual import VirtualKafka, virtual_options

    if request.node.get_closest_marker("virtual_time") is None:
        pytest.fail(
            "virtual_kafka is a cluster in virtual time: mark the test with "
            "@pytest.mark.virtual_time, or use kafka_cluster",
            pytrace=False,
        )
    mark = _read_mark(request.node, "virtual_time", virtual_options)
    kafka = VirtualKafka(request.getfixturevalue("_virtual_world"), mark["brokers"], mark["config"])
    kafka.start_all()
    yield kafka
    kafka.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("virtual_time") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "_virtual_world")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in its virtual world."""
    if pyfuncitem.get_closest_marker("virtual_time") is None:
        return None
    from trimtab.pytest.virtual import run_in_virtual_time, virtual_options
    from trimtab.sim.loop import StalledError

    # pytest-asyncio has put a function around it, which would run it in real time.
    test: Callable[..., Coroutine[Any, Any, None]] = inspect.unwrap(
        pyfuncitem.obj, stop=inspect.iscoroutinefunction
    )
    if not inspect.iscoroutinefunction(test):
        pytest.fail("only an `async def` test can run in virtual time", pytrace=False)
    fixtures: Mapping[str, Any] = pyfuncitem.funcargs
    names = inspect.signature(test).parameters
    try:
        run_in_virtual_time(
            fixtures["_virtual_world"],
            test(**{name: fixtures[name] for name in names}),
            _read_mark(pyfuncitem, "virtual_time", virtual_options)["limit_s"],
        )
    except StalledError as error:  # raised by the loop, so no line of the test is in its traceback
        pytest.fail("\n".join([str(error), *error.__notes__]), pytrace=False)
    return True


# Marks and names


def _read_mark(node: pytest.Item, name: str, options: Callable[..., object]) -> dict[str, Any]:
    """The options that a test's mark gives, else their defaults; fails the test if the mark does
    not have one."""
    mark = node.get_closest_marker(name)
    signature = inspect.signature(options)
    try:
        given = signature.bind(*mark.args, **mark.kwargs) if mark else signature.bind()
    except TypeError as error:
        known = ", ".join(signature.parameters)
        pytest.fail(f"@pytest.mark.{name}: {error}; its options: {known}", pytrace=False)
    given.apply_defaults()
    return given.arguments


def _unique_name(node: pytest.Item) -> str:
    """The test's name, in characters that a topic may have, and eight hex digits."""
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", node.name).strip("-.")
    return f"{plain[:_NAME_CHARACTERS]}-{uuid4().hex[:8]}"
