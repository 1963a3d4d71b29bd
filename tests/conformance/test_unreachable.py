"""Clusters that cannot be reached, on the real network: the errors, and that Ctrl-C ends a wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from lab.processes import free_ports
from trimtab import Admin, Consumer, Producer
from trimtab.kafka.errors import KafkaError

PLACES = {
    "no listener": "127.0.0.1:{port}",
    "no such name": "no-such-host.invalid:9092",
    "no answer": "192.0.2.1:9092",  # in a network reserved by RFC 5737
}
END_SECONDS = 10


def send(place: str) -> None:
    with Producer(place, max_block_ms=500) as producer:
        producer.send("t", b"v")


def list_topics(place: str) -> None:
    with Admin(place, default_api_timeout_ms=500, socket_connection_setup_timeout_ms=200) as admin:
        admin.topics()


def look_up(place: str) -> None:
    with Consumer(place, default_api_timeout_ms=500) as consumer:
        consumer.assign([("t", 0)])
        consumer.position(("t", 0))


@pytest.mark.parametrize("use", [send, list_topics, look_up])
def test_a_name_that_does_not_resolve(use: Callable[[str], None]) -> None:
    place = PLACES["no such name"]
    with pytest.raises(
        KafkaError, match=rf"\({place}\) cannot be reached: its name does not resol"
    ):
        use(place)


@pytest.mark.parametrize("use", [send, list_topics, look_up])
def test_an_address_without_a_listener(use: Callable[[str], None]) -> None:
    place = PLACES["no listener"].format(port=free_ports(1)[0])
    with pytest.raises(KafkaError, match=rf"\({place}\) cannot be reached: .*(refused|failed)"):
        use(place)


SENDER = """
import sys
from trimtab import Producer

with Producer(sys.argv[1]) as producer:
    print("sending", flush=True)
    producer.send("t", b"v")
"""


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_ctrl_c_ends_a_send_that_waits(place: str) -> None:
    address = place.format(port=free_ports(1)[0])
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sending\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=END_SECONDS)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
