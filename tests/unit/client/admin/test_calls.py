from __future__ import annotations

import pytest

from trimtab.client.admin.calls import FinalError, check, raise_change_error, read_error
from trimtab.kafka.errors import BrokerError, ErrorCode


def test_an_answers_error_names_its_subject_in_the_brokers_words() -> None:
    assert read_error(0, "all is well", "topic t") is None
    error = read_error(44, "at most 3", "topic t")
    assert error is not None
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert str(error) == "topic t: POLICY_VIOLATION (44): at most 3"
    check(0, None, "topic t")
    with pytest.raises(BrokerError, match="topic t"):
        check(3, None, "topic t")


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED], ids=lambda c: c.name
)
def test_a_change_that_has_not_happened_yet_is_asked_for_again(code: ErrorCode) -> None:
    with pytest.raises(BrokerError):
        raise_change_error(BrokerError(code, "", "topic t"))


def test_any_other_refusal_of_a_change_is_final_even_if_its_kind_may_pass() -> None:
    raise_change_error(None)
    refused = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "", "topic t")
    assert refused.retriable
    with pytest.raises(FinalError) as final:
        raise_change_error(refused)
    assert final.value.error is refused
