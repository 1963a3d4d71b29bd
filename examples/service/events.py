"""A web service that stores events in a topic, and answers once Kafka has them.

KAFKA=127.0.0.1:9092 uvicorn --factory events:make_app
curl -d '{"user": "ann", "action": "login"}' -H 'content-type: application/json' :8000/events
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from trimtab import AsyncAdmin, AsyncProducer
from trimtab.errors import BrokerError, ErrorCode, KafkaError, Unavailable

TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class Event(BaseModel):
    user: str = Field(min_length=1, max_length=100)
    action: str


class Stored(BaseModel):
    partition: int
    offset: int


def make_app(servers: str | None = None, topic: str = "events", room: int = 32 << 20) -> FastAPI:
    """The service; `room` is how many bytes of events may wait for Kafka at a time."""
    addresses = servers or os.environ.get("KAFKA", "127.0.0.1:9092")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # One producer for all requests: it puts their events into common batches. Nobody waits for
        # an answer for minutes, so time-outs are seconds. The end of the block sends what is left.
        async with (
            AsyncProducer(
                addresses,
                linger_ms=5,
                buffer_memory=room,  # an event that finds no room …
                max_block_ms=1000,  # … within this time is refused: that is the back-pressure
                request_timeout_ms=3000,
                delivery_timeout_ms=10_000,
            ) as app.state.producer,
            AsyncAdmin(addresses, default_api_timeout_ms=3000) as app.state.admin,
        ):
            yield

    app = FastAPI(title="events", lifespan=lifespan)

    @app.post("/events", status_code=201)
    async def store(event: Event, request: Request) -> Stored:
        producer: AsyncProducer[bytes, bytes] = request.app.state.producer
        value = event.model_dump_json().encode()
        # The key keeps the events of a user in one partition, so in order.
        place = await producer.send_and_wait(topic, value, key=event.user.encode())
        return Stored(partition=place.partition, offset=place.offset)

    @app.get("/health")
    async def health(request: Request) -> Response:
        """Whether a broker answers. For readiness: to restart this service would not help."""
        await request.app.state.admin.cluster()
        return Response()

    # Errors become answers here, so no route needs a `try`. The most specific handler is called.
    @app.exception_handler(Unavailable)
    async def say_try_again(request: Request, error: Unavailable) -> Response:
        # The event may be stored all the same, and then twice if the client sends it again.
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    @app.exception_handler(KafkaError)
    async def say_refused(request: Request, error: KafkaError) -> Response:
        is_large = isinstance(error, BrokerError) and error.code in TOO_LARGE
        return JSONResponse({"detail": str(error)}, 413 if is_large else 502)

    return app
