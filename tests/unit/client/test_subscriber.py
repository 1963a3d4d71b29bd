"""What a consumer in a group does on the thread that polls."""

from __future__ import annotations

import asyncio

import pytest

from trimtab.client.subscriber import refuse_awaitable
from trimtab.kafka.errors import UsageError


def test_a_consumer_for_threads_refuses_what_would_have_to_be_awaited() -> None:
    refuse_awaitable(None)
    refuse_awaitable(7)
    with pytest.raises(UsageError, match="use AsyncConsumer"):
        refuse_awaitable(asyncio.sleep(0))
