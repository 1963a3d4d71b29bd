"""Requests that wait for their responses (`trimtab.kafka.wire.in_flight`)."""

from __future__ import annotations

import pytest

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import encode_parts
from trimtab.kafka.wire.framing import decode_request_header, encode_request, encode_response
from trimtab.kafka.wire.in_flight import InFlightRequests
from trimtab.kafka.wire.messages import APIS_BY_REQUEST
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.kafka.wire.types import MAX_INT32

API, VERSION = APIS_BY_REQUEST[EndTxnRequest], 3
REQUEST = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=2, committed=True)


def add(
    requests: InFlightRequests[str], receiver: str | None, deadline: float = 1.0
) -> tuple[int, bytes]:
    """The correlation id of a new request, and its frame."""
    body = encode_parts(REQUEST, VERSION)
    frame = b"".join(requests.add_request(API, VERSION, body, receiver, deadline))
    return decode_request_header(frame[4:]).correlation_id, frame


def response_to(correlation_id: int) -> bytes:
    return b"".join(encode_response(EndTxnResponse(), VERSION, correlation_id))[4:]


@pytest.fixture
def requests() -> InFlightRequests[str]:
    return InFlightRequests("broker 1", "me")


def test_a_request_is_framed_with_the_next_correlation_id(requests: InFlightRequests[str]) -> None:
    for number in (1, 2, 3):
        correlation_id, frame = add(requests, "a")
        assert (correlation_id, requests.last_correlation_id) == (number, number)
        assert frame == b"".join(encode_request(REQUEST, VERSION, number, "me"))


def test_correlation_ids_start_again_after_the_largest(requests: InFlightRequests[str]) -> None:
    requests.last_correlation_id = MAX_INT32 - 1
    assert [add(requests, "a")[0] for _ in range(3)] == [MAX_INT32, 0, 1]
    assert requests.match(response_to(MAX_INT32)).correlation_id == MAX_INT32
    assert requests.match(response_to(0)).correlation_id == 0


def test_responses_are_matched_in_the_order_of_the_requests(
    requests: InFlightRequests[str],
) -> None:
    for receiver in "abc":
        add(requests, receiver)
    matched = [requests.match(response_to(number)) for number in (1, 2, 3)]
    assert [each.receiver for each in matched] == ["a", "b", "c"]
    assert (matched[0].api, matched[0].version) == (API, VERSION)
    assert len(requests) == 0


def test_a_request_without_a_response_is_not_waited_for(requests: InFlightRequests[str]) -> None:
    add(requests, None)
    add(requests, "b")
    assert len(requests) == 1
    assert requests.match(response_to(2)).receiver == "b"


@pytest.mark.parametrize("answered", [2, 3, 0])
def test_a_response_out_of_order_is_refused_and_its_request_still_waits(
    requests: InFlightRequests[str], answered: int
) -> None:
    add(requests, "a")
    add(requests, "b")
    with pytest.raises(CorruptData, match=f"broker 1 answered request {answered}.*request 1"):
        requests.match(response_to(answered))
    assert [each.receiver for each in requests.remove_all()] == ["a", "b"]


def test_a_response_to_no_request_is_refused(requests: InFlightRequests[str]) -> None:
    with pytest.raises(CorruptData, match="no request waits"):
        requests.match(response_to(1))
    with pytest.raises(CorruptData, match="response header"):
        requests.match(b"\0\0")


def test_a_request_that_is_put_back_is_the_oldest_again(requests: InFlightRequests[str]) -> None:
    add(requests, "a")
    add(requests, "b")
    requests.put_back(requests.match(response_to(1)))
    assert [each.receiver for each in requests.remove_all()] == ["a", "b"]
    assert len(requests) == 0


def test_the_next_due_request_has_the_earliest_deadline(requests: InFlightRequests[str]) -> None:
    assert requests.next_due() is None
    for receiver, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        add(requests, receiver, deadline)
    due = requests.next_due()
    assert due is not None
    assert due.receiver == "b"
