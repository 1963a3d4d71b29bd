"""The pytest plugin with other clients, with pytest-xdist, and as docs/testing.md shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.S)


def test_the_programs_of_the_guide_pass(pytester: pytest.Pytester) -> None:
    topics, conftest, killed, separated, virtual, plain, unittest = BLOCKS
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        test_topics=topics,
        test_killed=killed,
        test_virtual=virtual,
        test_unittest=unittest,
        plain=plain,
    )
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "-v"
    )
    done.assert_outcomes(passed=5)
    assert pytester.runpython(pytester.path / "plain.py").ret == 0
    (pytester.path / "conftest.py").unlink()
    separate = pytester.makepyfile(test_separated=separated)
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", separate
    )
    done.assert_outcomes(passed=3)


def test_ctrl_c_in_a_test_or_fixture_ends_the_run_and_the_cluster(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("""
import os, signal
import pytest

@pytest.fixture
def interrupted(kafka_cluster):
    os.kill(os.getpid(), signal.SIGINT)

def test_fixture(interrupted):
    pass

def test_waiting(kafka_topic, kafka_records):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    kafka_records(kafka_topic, count=1, timeout_s=300)

@pytest.mark.virtual_time
async def test_virtual(virtual_kafka):
    os.kill(os.getpid(), signal.SIGINT)
    await virtual_kafka.stop(0)
""")
    pytester.mkdir("data")
    monkeypatch.setenv("TMPDIR", str(pytester.path / "data"))
    for name in ("test_fixture", "test_waiting", "test_virtual"):
        done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", name, timeout=120)
        assert done.ret == pytest.ExitCode.INTERRUPTED
        done.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
        done.stderr.no_fnmatch_line("*Traceback*")
        assert not list((pytester.path / "data").glob("trimtab-*"))


def test_pytest_asyncio_and_virtual_time_share_a_run(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_asyncio")
    pytester.makepyfile("""
import asyncio, time
import pytest

async def test_real(kafka_topic):
    assert time.time() > 1_780_000_000

class TestIn:
    @pytest.mark.virtual_time(brokers=1)
    @pytest.mark.parametrize("hours", [1, 2])
    async def test_virtual(self, virtual_kafka, hours):
        began = time.monotonic()
        await asyncio.sleep(hours * 3600)
        assert time.monotonic() - began == pytest.approx(hours * 3600)
""")
    for mode in ("auto", "strict"):
        done = pytester.runpytest_subprocess(
            *("-p", "no:cacheprovider", "-o", f"asyncio_mode={mode}"), timeout=200
        )
        done.assert_outcomes(passed=3 if mode == "auto" else 2, failed=int(mode == "strict"))


def test_each_worker_of_xdist_has_a_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest
from trimtab import Producer

@pytest.mark.parametrize("number", range(20))
def test_each(kafka_cluster, kafka_topic, assert_produces, number):
    with assert_produces(kafka_topic, [b"value"]):
        with Producer(kafka_cluster.bootstrap_servers) as producer:
            producer.send(kafka_topic, b"value")
""")
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "-n", "2"
    )
    done.assert_outcomes(passed=20)


def test_kafka_python_reads_in_a_group(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
from kafka import KafkaConsumer, KafkaProducer

def test_read(kafka_cluster, kafka_topic, kafka_group, assert_produces):
    servers = kafka_cluster.bootstrap_servers
    with assert_produces(kafka_topic, [b"value"]):
        producer = KafkaProducer(bootstrap_servers=servers)
        producer.send(kafka_topic, b"value").get(10)
        producer.close()
    consumer = KafkaConsumer(
        kafka_topic, group_id=kafka_group, bootstrap_servers=servers, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"value"
    consumer.close()
""")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_groups_of_aiokafka_rebalance_in_virtual_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import asyncio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

@pytest.mark.virtual_time(config={"num.partitions": 4})
async def test_rebalance(virtual_kafka):
    servers = virtual_kafka.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(40):
            await producer.send_and_wait("orders", b"%d" % number)

    def member():
        return AIOKafkaConsumer(
            "orders", group_id="billing", bootstrap_servers=servers, auto_offset_reset="earliest"
        )

    async with member() as first:
        read = [(await first.getone()).value for _ in range(40)]
        assert sorted(read) == sorted(b"%d" % number for number in range(40))
        assert len(first.assignment()) == 4
        async with member() as second:
            await asyncio.sleep(20)
            assert len(first.assignment()) == len(second.assignment()) == 2
        await asyncio.sleep(20)
        assert len(first.assignment()) == 4
""")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
