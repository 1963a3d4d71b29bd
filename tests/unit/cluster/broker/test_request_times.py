"""Which requests a broker measures (`trimtab.cluster.server.request_metrics_cy`). Time is
virtual."""

from __future__ import annotations

import pytest

from tests.unit.cluster.broker.conftest import Lab

PRODUCE = 0


async def answered(lab: Lab, acks: int, slow_ms: float = 0, ask: bool = True) -> list[float]:
    """The numbers and the whole time of the produce requests that a broker counts."""
    broker = lab.brokers[0]
    broker.listener.measure(lab.world.loop.time)
    broker.listener.faults.slow(slow_ms)
    await lab.create_topic("t")
    client = lab.connect()
    for _ in range(3):
        request = lab.produce("t", lab.batch(b"a"), acks=acks)
        if ask:
            await client.ask(request, 9)
        else:
            client.send(request, 9)
    assert broker.listener.requests is not None
    api = broker.listener.requests.apis[PRODUCE]
    return [sum(api.requests), sum(api.buckets), round(api.total_ms)]


@pytest.mark.parametrize("acks", [1, -1])
async def test_an_answered_request_is_counted(lab: Lab, acks: int) -> None:
    assert await answered(lab, acks) == [3, 3, 0]


async def test_a_request_without_a_response_is_counted(lab: Lab) -> None:
    assert await answered(lab, 0, ask=False) == [3, 3, 0]


async def test_an_injected_delay_is_part_of_the_time(lab: Lab) -> None:
    assert await answered(lab, 1, slow_ms=20) == [3, 3, 60]


async def test_nothing_is_counted_before_it_is_asked_for(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.append("t", b"a")
    assert lab.brokers[0].listener.requests is None
