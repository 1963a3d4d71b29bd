"""Errors of TLS in words."""

from __future__ import annotations

import ssl

import pytest

from trimtab.client.network.certificates import explain_certificate, tls_reason


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (62, "ssl.endpoint.identification.algorithm"),
        (64, "ssl.endpoint.identification.algorithm"),
        (18, "ssl.truststore.location"),
        (20, "ssl.truststore.location"),
    ],
)
def test_a_certificate_that_is_not_accepted_names_the_option_to_set(code: int, fix: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "no good"
    explained = explain_certificate("broker 1 (a:1)", error)
    assert explained.startswith("broker 1 (a:1): its certificate is not accepted: no good; ")
    assert fix in explained


def test_an_expired_certificate_has_no_option() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 10, "certificate has expired"
    assert explain_certificate("b", error).endswith("certificate has expired")


def test_reasons_are_in_plain_letters() -> None:
    error = ssl.SSLError()
    error.reason = "WRONG_VERSION_NUMBER"
    assert tls_reason(error) == "wrong version number"
