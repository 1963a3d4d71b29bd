"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import socket

import pytest

SEND = """
import pytest
from trimtab import Producer

def send(cluster, topic, *values):
    with Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value)
"""


def run(
    pytester: pytest.Pytester, tests: str, *arguments: str, conftest: str = ""
) -> pytest.RunResult:
    if conftest:
        pytester.makeconftest(conftest)
    pytester.makepyfile(SEND + tests)
    return pytester.runpytest(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", *arguments
    )


def test_a_test_has_a_topic_and_reads_it(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
def test_both(kafka_cluster, kafka_topic, kafka_records):
    assert kafka_records(kafka_topic) == []
    send(kafka_cluster, kafka_topic, b"a", b"b")
    assert [record.value for record in kafka_records(kafka_topic, count=2)] == [b"a", b"b"]
    [first, _] = kafka_records(kafka_topic, value_deserializer=bytes.decode)
    assert first.value == "a"
""",
    )
    done.assert_outcomes(passed=1)


def test_tests_share_the_cluster_but_no_topic_and_no_group(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
from trimtab import Admin
seen = set()

@pytest.mark.parametrize("number", range(3))
def test_each(kafka_cluster, kafka_topic, kafka_group, number):
    seen.update([kafka_cluster.bootstrap_servers, kafka_topic, kafka_group])

def test_all(kafka_cluster):
    assert len(seen) == 1 + 3 + 3
    with Admin(kafka_cluster.bootstrap_servers) as admin:
        assert admin.topics() == []
""",
    )
    done.assert_outcomes(passed=4)


def test_a_mark_gives_the_options_of_the_topic(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
from trimtab import Admin

@pytest.mark.kafka_topic(partitions=33, replication_factor=2, config={"retention.ms": 5000})
def test_marked(kafka_cluster, kafka_topic):
    with Admin(kafka_cluster.bootstrap_servers) as admin:
        partitions = admin.describe_topics([kafka_topic])[kafka_topic].partitions
        assert {len(each.replicas) for each in partitions} == {2} and len(partitions) == 33
        configs = {each.name: each.value for each in admin.describe_configs("topic", kafka_topic)}
        assert configs["retention.ms"] == "5000"

@pytest.mark.kafka_topic(partition=33)
def test_misspelt(kafka_topic):
    pass
""",
        conftest="""
import pytest

@pytest.fixture(scope="session")
def kafka_options():
    return {"brokers": 2}
""",
    )
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(
        ["@pytest.mark.kafka_topic: got an unexpected keyword argument 'partition'; its options: *"]
    )


def test_what_a_block_produces_is_compared(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
@pytest.mark.kafka_topic(partitions=3)
def test_equal(kafka_cluster, kafka_topic, assert_produces):
    send(kafka_cluster, kafka_topic, b"before")
    with assert_produces(kafka_topic, [b"b", b"a"]) as produced:
        send(kafka_cluster, kafka_topic, b"a", b"b")
    assert sorted(record.value for record in produced) == [b"a", b"b"]
    with assert_produces(kafka_topic):
        send(kafka_cluster, kafka_topic, b"a", b"b")
    with assert_produces(kafka_topic, count=0):
        pass

def test_a_new_topic(kafka_cluster, kafka_topic, assert_produces):
    with assert_produces(kafka_topic + "-dead", count=1):
        send(kafka_cluster, kafka_topic + "-dead", b"a")

def test_others(kafka_cluster, kafka_topic, assert_produces):
    with assert_produces(kafka_topic, [b"a", b"b"]):
        send(kafka_cluster, kafka_topic, b"a", b"c")

def test_too_few(kafka_cluster, kafka_topic, assert_produces):
    with assert_produces(kafka_topic, [b"a", b"b"], timeout_s=0.1):
        send(kafka_cluster, kafka_topic, b"a")

def test_too_many(kafka_cluster, kafka_topic, assert_produces):
    with assert_produces(kafka_topic, count=1):
        send(kafka_cluster, kafka_topic, b"a", b"b")

def test_an_error_in_the_block(kafka_topic, assert_produces):
    with pytest.raises(ZeroDivisionError), assert_produces(kafka_topic, [b"a"]):
        1 / 0

def test_a_value_instead_of_a_list(kafka_topic, assert_produces):
    with assert_produces(kafka_topic, b"a"):
        pass
""",
    )
    done.assert_outcomes(passed=3, failed=4)
    done.stdout.fnmatch_lines(
        [
            "E*other records produced to 'test_others-*'",
            "E*missing: b'b'",
            "E*not expected: b'c'",
            "E*1 record produced to 'test_too_few-*' within 0.1 s, not 2",
            "E*missing: b'b'",
            "E*2 records produced to 'test_too_many-*', not 1",
            "E*values: b'a', b'b'",
            "E*values=b'a': give a list of values, such as [[]b'a'[]]",
        ]
    )


def test_too_few_records_to_read_fail_the_test(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
def test_few(kafka_cluster, kafka_topic, kafka_records):
    send(kafka_cluster, kafka_topic, *[b"a"] * 12)
    kafka_records(kafka_topic, count=13, timeout_s=0.1)
""",
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["E*'test_few-*' has 12 records after 0.1 s, not 13", "E*values: b'a', *, and 2 more"]
    )


def test_options_that_come_after_the_cluster_fail_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_a="def test_default(kafka_cluster):\n    assert len(kafka_cluster.addresses) == 1",
        test_b="""
import pytest

@pytest.fixture(scope="session")
def kafka_options():
    return {"brokers": 2}

def test_two(kafka_topic):
    pass
""",
    )
    done = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:asyncio")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["kafka_options={'brokers': 2}: the session's cluster was started*"])
    alone = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:asyncio", "test_b.py")
    alone.assert_outcomes(passed=1)


def test_records_that_were_not_read_in_time_fail_the_test(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
def test_late(kafka_cluster, kafka_topic, kafka_records):
    send(kafka_cluster, kafka_topic, b"a")
    kafka_records(kafka_topic, timeout_s=0)
""",
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["E*partition 0 of 'test_late-*' was read up to offset 0 of 1 within 0 s; is its leader*"]
    )


def test_faults_end_with_the_test(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
@pytest.mark.kafka_topic(replication_factor=2)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_down(kafka_cluster, kafka_faults, kafka_topic, kafka_records, end):
    getattr(kafka_faults, end)(1)
    kafka_faults.slow(0, produce_ms=300)
    assert len(kafka_cluster.addresses) == 1
    send(kafka_cluster, kafka_topic, b"a")
    assert len(kafka_records(kafka_topic)) == 1

def test_up(kafka_cluster, kafka_faults):
    assert len(kafka_cluster.addresses) == 2
    kafka_faults.kill(1)
    kafka_faults.start(1)
    assert len(kafka_cluster.addresses) == 2
""",
        conftest="""
import pytest

@pytest.fixture(scope="session")
def kafka_options():
    return {"brokers": 2}
""",
    )
    done.assert_outcomes(passed=3)


QUICK = """
import pytest

@pytest.fixture(scope="session")
def kafka_options():
    return {
        "brokers": 3,
        "config": {
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "broker.heartbeat.interval.ms": 100,
            "broker.session.timeout.ms": 500,
            "replica.lag.time.max.ms": 500,
        },
    }
"""


def test_partitions_losses_of_power_and_full_disks_end_with_the_test(
    pytester: pytest.Pytester,
) -> None:
    done = run(
        pytester,
        """
from trimtab import Admin

@pytest.mark.kafka_topic(partitions=3)
@pytest.mark.parametrize("fault", ["isolate", "power_loss", "disk_full"])
def test_away(kafka_cluster, kafka_faults, kafka_topic, kafka_records, fault):
    options = {"acks": "all", "linger_ms": 0, "request_timeout_ms": 1000}
    with Producer(kafka_cluster.bootstrap_servers, **options) as producer:
        for value in (b"before", b"while"):
            for partition in range(3):
                producer.send(kafka_topic, value, partition=partition).result()
            if value == b"before":
                getattr(kafka_faults, fault)(1)
    assert len(kafka_records(kafka_topic, count=6, timeout_s=60)) == 6
    with Admin(kafka_cluster.bootstrap_servers, request_timeout_ms=1000) as admin:
        for partition in admin.describe_topics([kafka_topic])[kafka_topic].partitions:
            assert set(partition.in_sync_replicas) == {0, 2}

def test_in_touch(kafka_cluster, kafka_topic):
    assert kafka_cluster.down == []
    with Admin(kafka_cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topics([kafka_topic])[kafka_topic].partitions
        assert set(partition.in_sync_replicas) == {0, 1, 2}

def test_ended_by_the_test(kafka_cluster, kafka_faults, kafka_topic):
    kafka_faults.isolate(0, 1)
    kafka_faults.isolate(2)
    kafka_faults.heal()
    kafka_faults.disk_full(0)
    send(kafka_cluster, kafka_topic, b"a")
    kafka_faults.disk_full(0, is_full=False)
    kafka_faults.power_loss(0)
    kafka_faults.start(0)
    assert kafka_cluster.down == []

def test_wrong(kafka_faults):
    kafka_faults.disk_full(0, is_full="no")
""",
        conftest=QUICK,
    )
    done.assert_outcomes(passed=5, failed=1)
    done.stdout.fnmatch_lines(["E*UsageError: is_full='no'*"])


def test_several_faults_of_a_broker_end_with_the_test(
    pytester: pytest.Pytester,
) -> None:
    done = run(
        pytester,
        """
def test_broken(kafka_cluster, kafka_faults):
    kafka_faults.isolate(1)
    kafka_faults.disk_full(1)
    kafka_faults.disk_full(2)
    kafka_faults.slow(0)
    kafka_faults.kill(1)
    with pytest.raises(Exception, match="cut off"):
        kafka_faults.start(1)
    kafka_faults.kill(2)
    with pytest.raises(Exception, match="No space left"):
        kafka_faults.start(2)

def test_mended(kafka_cluster, kafka_topic, kafka_records):
    assert kafka_cluster.down == []
    send(kafka_cluster, kafka_topic, b"a")
    assert len(kafka_records(kafka_topic)) == 1
""",
        conftest=QUICK,
    )
    done.assert_outcomes(passed=2)


def test_a_deleted_topic_is_no_error(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
from trimtab import Admin

def test_delete(kafka_cluster, kafka_topic):
    with Admin(kafka_cluster.bootstrap_servers) as admin:
        admin.delete_topic(kafka_topic)
""",
    )
    done.assert_outcomes(passed=1)


def test_the_plugin_imports_nothing_of_trimtab_before_a_fixture_is_used(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
import sys

def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] == "trimtab"}
    assert loaded == {"trimtab", "trimtab.pytest"}
""")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


# In virtual time


def test_hours_pass_in_virtual_time(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
import asyncio, time
from trimtab import AsyncConsumer, AsyncProducer

@pytest.mark.virtual_time(seed=3)
async def test_hours(virtual_kafka):
    began = time.time(), time.monotonic(), time.monotonic_ns()
    await asyncio.sleep(3600)
    assert time.time() - began[0] == pytest.approx(3600)
    assert time.monotonic() - began[1] == pytest.approx(3600)
    assert time.monotonic_ns() - began[2] == pytest.approx(3600e9)
    servers = virtual_kafka.bootstrap_servers
    async with AsyncProducer(servers, random=virtual_kafka.random("producer")) as producer:
        assert (await (await producer.send("topic", b"value"))).offset == 0
    async with AsyncConsumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("topic", 0)])
        assert [record.value for record in await consumer.poll(5000)] == [b"value"]

def test_real(kafka_topic):
    assert time.time() > 1_780_000_000
""",
    )
    done.assert_outcomes(passed=2)


def test_every_fault_in_virtual_time(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
import asyncio
from trimtab import AsyncProducer

@pytest.mark.virtual_time(config={"default.replication.factor": 3, "min.insync.replicas": 2})
async def test_faults(virtual_kafka):
    async with AsyncProducer(
        virtual_kafka.bootstrap_servers, acks="all", linger_ms=0
    ) as producer:
        async def send():
            began = virtual_kafka.now_s
            await (await producer.send("topic", b"value"))
            return virtual_kafka.now_s - began

        assert await send() < 1
        for broker in range(3):
            virtual_kafka.slow(broker, produce_ms=500)
        assert 0.5 < await send() < 1
        for broker in range(3):
            virtual_kafka.slow(broker, produce_ms=0)
            virtual_kafka.kill(broker)
            await send()
            await virtual_kafka.start(broker)
            virtual_kafka.power_loss(broker)
            await send()
            await virtual_kafka.start(broker)
            await virtual_kafka.stop(broker)
            await send()
            await virtual_kafka.start(broker)
            virtual_kafka.isolate(broker)
            await send()
            virtual_kafka.heal()
            await asyncio.sleep(60)
            virtual_kafka.isolate(broker, (broker + 1) % 3)
            await send()
            virtual_kafka.heal()
            await asyncio.sleep(60)
            virtual_kafka.disk_full(broker)
            await send()
            virtual_kafka.disk_full(broker, is_full=False)
            await asyncio.sleep(60)
""",
    )
    done.assert_outcomes(passed=1)


def test_the_same_seed_gives_the_same_run(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
from trimtab import AsyncProducer
ends = []

@pytest.mark.virtual_time(seed=7)
@pytest.mark.parametrize("turn", range(2))
async def test_seven(virtual_kafka, turn):
    random = virtual_kafka.random("producer")
    async with AsyncProducer(virtual_kafka.bootstrap_servers, random=random) as producer:
        for number in range(100):
            await (await producer.send("topic", b"value"))
    ends.append(virtual_kafka.now_s)

@pytest.mark.virtual_time(seed=8)
async def test_eight(virtual_kafka):
    await test_seven(virtual_kafka, 0)
    assert ends[0] == ends[1] != ends[2]
""",
    )
    done.assert_outcomes(passed=3)


def test_a_test_that_can_never_end_fails(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
import asyncio

@pytest.mark.virtual_time
async def test_deadlock():
    await asyncio.Event().wait()
""",
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*deadlock at virtual time*"])


def test_a_failure_shows_the_line_of_the_test_and_what_its_objects_are(
    pytester: pytest.Pytester,
) -> None:
    tests = """
def test_wrong(kafka_cluster, kafka_topic):
    with Producer(kafka_cluster.bootstrap_servers) as producer:
        producer.send(kafka_topic, "text")  # the line

@pytest.mark.virtual_time
async def test_virtual(virtual_kafka):
    virtual_kafka.kill(9)  # the line
"""
    done = run(pytester, tests)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        [
            "kafka_cluster = <Cluster at 127.0.0.1:*>*",
            "*the line",
            "E *UsageError: record value is of type str*",
            "*the line",
            "E *UsageError: broker=9: must be from 0 to 2",
            "E *virtual world: seed 0, at 0*",
        ]
    )
    done.stdout.no_fnmatch_line("*trimtab/*.py*")
    done.stdout.no_fnmatch_line("*the last events*")
    assert "arguments.py" in run(pytester, tests, "--full-trace").stdout.str()


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(pytester: pytest.Pytester) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(
            pytester,
            f"""
@pytest.fixture(scope="session")
def kafka_options():
    return {{"ports": {port}}}

def test_any(kafka_topic):
    pass
""",
        )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"kafka_options={{'ports': {port}}}:*in use*leave `ports` out*"])


def test_a_wrong_use_of_virtual_time_says_what_to_do(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
@pytest.mark.virtual_time
def test_sync(virtual_kafka):
    pass

def test_unmarked(virtual_kafka):
    pass

@pytest.mark.virtual_time(sed=7)
async def test_misspelt(virtual_kafka):
    pass

@pytest.mark.virtual_time
async def test_down(virtual_kafka):
    virtual_kafka.kill(3)
""",
    )
    done.assert_outcomes(failed=2, errors=2)
    done.stdout.fnmatch_lines(
        [
            "virtual_kafka is a cluster in virtual time: mark the test*",
            "*got an unexpected keyword argument 'sed'; its options: seed, brokers, config, *",
            "only an `async def` test can run in virtual time",
            "E*UsageError: broker=3: *",
        ]
    )


def test_keys_are_asserted_to_be_even_without_a_cluster(pytester: pytest.Pytester) -> None:
    """The incident of the one public report: the key was changed from the user to the country."""
    done = run(
        pytester,
        """
from random import Random

random = Random(1)
ORDERS = [(f"user-{random.getrandbits(32)}", random.choice(["us"] * 8 + ["de", "fr"]))
          for _ in range(40_000)]

def test_by_country(assert_even):
    assert_even([country for _, country in ORDERS], partitions=48, worst=1.3)

def test_by_user(assert_even):
    found = assert_even([user for user, _ in ORDERS], partitions=48, worst=1.3)
    assert found.ratio < 1.3

def test_too_few_to_tell(assert_even):
    assert_even([user for user, _ in ORDERS[:100]], partitions=48)
""",
    )
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            "E *AssertionError: uneven: 40,000 records with keys on 48 partitions: *",
            "E *to blame in partition *: 'us' (*",
            "E *UsageError: unclear: 100 records *give about *",
        ]
    )
