"""The requests of one connection that wait for their responses.

    add_request  request ─▶ frame with the next correlation id ═▶ the other side
    match        request ◀─ its response                       ◀═

The other side answers the requests of a connection in order (Kafka's rule). So a response belongs
to the oldest request that waits, and one with another correlation id means that the connection can
no longer be trusted. Used by clients' connections and by those between nodes.

Source: Kafka's `InFlightRequests`, `NetworkClient.parseResponse`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.framing import decode_correlation_id, frame_request
from trimtab.kafka.wire.messages import Api
from trimtab.kafka.wire.types import MAX_INT32, BytesLike

Receiver = TypeVar("Receiver")


class InFlightRequest(NamedTuple, Generic[Receiver]):
    """A request that waits for its response.

    Attributes:
        version: of the request, and so of the response.
        deadline: when the response must have arrived, in the loop's time; infinite if at any time.
        receiver: a callback or a future for the response or the error.
    """

    correlation_id: int
    api: Api
    version: int
    deadline: float
    receiver: Receiver


class InFlightRequests(Generic[Receiver]):
    """One connection's requests, oldest first.

    Args:
        other_side: names the broker or node in errors.
        client_id: goes into each request's header.

    Attributes:
        last_correlation_id: of the last request; counts from 1, and from 0 again after 2**31 - 1.
    """

    def __init__(self, other_side: str, client_id: str) -> None:
        self.last_correlation_id = 0
        self._other_side = other_side
        self._client_id = client_id
        self._waiting: deque[InFlightRequest[Receiver]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add_request(
        self,
        api: Api,
        version: int,
        body: list[BytesLike],
        receiver: Receiver | None,
        deadline: float = math.inf,
    ) -> list[BytesLike]:
        """The frame of the next request.

        Args:
            body: the encoded request.
            receiver: for its response; None if there will be none (Produce with acks=0).
        """
        correlation_id = self.last_correlation_id = (self.last_correlation_id + 1) & MAX_INT32
        if receiver is not None:
            self._waiting.append(InFlightRequest(correlation_id, api, version, deadline, receiver))
        return frame_request(api, version, correlation_id, self._client_id, body)

    def match(self, frame: BytesLike) -> InFlightRequest[Receiver]:
        """Remove and return the request to which this frame is the response.

        Raises:
            CorruptData: it is the response to no request, or not to the oldest.
        """
        correlation_id = decode_correlation_id(frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise self._mismatch(correlation_id)
        return self._waiting.popleft()

    def put_back(self, request: InFlightRequest[Receiver]) -> None:
        """Undo `match`, because the response could not be decoded."""
        self._waiting.appendleft(request)

    def remove_all(self) -> list[InFlightRequest[Receiver]]:
        """All that wait, oldest first, when the connection is lost."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def next_due(self) -> InFlightRequest[Receiver] | None:
        """The request with the earliest deadline."""
        return min(self._waiting, key=lambda request: request.deadline, default=None)

    def _mismatch(self, correlation_id: int) -> CorruptData:
        expected = (
            f"expected was the response to request {self._waiting[0].correlation_id}"
            if self._waiting
            else "no request waits for a response"
        )
        return CorruptData(f"{self._other_side} answered request {correlation_id}; {expected}")
