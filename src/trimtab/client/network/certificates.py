"""Explains errors of TLS, and how to fix them."""

from __future__ import annotations

import ssl

_NAME_MISMATCHES = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NOT_TRUSTED = (18, 19, 20, 21)
"""Self-signed, or from an unknown issuer."""


def explain_certificate(broker: str, error: ssl.SSLCertVerificationError) -> str:
    """Why a broker's certificate is not accepted, and how to fix it."""
    fix = ""
    if error.verify_code in _NAME_MISMATCHES:
        fix = (
            "; reach it by a name that its certificate has, or set"
            " ssl.endpoint.identification.algorithm to an empty text to accept any name"
        )
    elif error.verify_code in _NOT_TRUSTED:
        fix = "; name the certificate authority's file in ssl.truststore.location"
    return f"{broker}: its certificate is not accepted: {error.verify_message}{fix}"


def tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason, in lower case."""
    return (error.reason or str(error)).replace("_", " ").lower()
