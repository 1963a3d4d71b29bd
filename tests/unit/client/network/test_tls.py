"""TLS settings, socket buffers and nonces of the real world."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from trimtab.client.network.tls import (
    TlsSettings,
    make_tls_context,
    set_buffer_sizes,
)
from trimtab.kafka.errors import UsageError


def test_the_context_verifies_brokers_and_their_names_by_default() -> None:
    context = make_tls_context(TlsSettings())
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    lenient = make_tls_context(TlsSettings(checks_host_name=False))
    assert lenient.verify_mode is ssl.CERT_REQUIRED
    assert not lenient.check_hostname


@pytest.mark.parametrize(
    ("protocols", "lowest", "highest"),
    [
        (("TLSv1.2", "TLSv1.3"), ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
        (("TLSv1.2",), ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        (("TLSv1.3",), ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_protocols(
    protocols: tuple[str, ...], lowest: ssl.TLSVersion, highest: ssl.TLSVersion
) -> None:
    context = make_tls_context(TlsSettings(protocols=protocols))
    assert (context.minimum_version, context.maximum_version) == (lowest, highest)


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "ECDHE-ECDSA-AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_have_the_names_that_java_has(iana: str, openssl: str) -> None:
    context = make_tls_context(TlsSettings(cipher_suites=(iana,)))
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    older = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert older == [openssl]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (TlsSettings(protocols=()), r"ssl\.enabled\.protocols is empty"),
        (TlsSettings(cipher_suites=("TLS_FOO_WITH_BAR",)), "OpenSSL has none of them"),
        (TlsSettings(cipher_suites=("TLS_AES_256_GCM_SHA384",)), r"suites of TLS 1\.3"),
        (
            TlsSettings(cipher_suites=("TLS_RSA_WITH_AES_128_GCM_SHA256",), protocols=("TLSv1.3",)),
            r"ssl\.enabled\.protocols is TLSv1\.3 alone",
        ),
        (TlsSettings(truststore_location="/no/such.pem"), r"truststore\.location=/no/such\.pem"),
        (TlsSettings(truststore_certificates="nothing"), "holds no certificate"),
        (
            TlsSettings(truststore_location="a", truststore_certificates="b"),
            "both given; keep one",
        ),
        (TlsSettings(keystore_location="a", keystore_key="b"), "both given"),
        (TlsSettings(keystore_key="b"), r"ssl\.keystore\.certificate\.chain is missing"),
        (TlsSettings(keystore_certificate_chain="b"), r"ssl\.keystore\.key is missing"),
        (
            TlsSettings(keystore_key="b", keystore_certificate_chain="c"),
            r"ssl\.keystore\.key: the private key and its certificate chain cannot be read",
        ),
    ],
)
def test_refusals_name_the_option(settings: TlsSettings, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_tls_context(settings)


def test_java_stores_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(UsageError, match=rf"is not PEM.*keytool -list -rfc -keystore {store}"):
        make_tls_context(TlsSettings(truststore_location=str(store)))
    with pytest.raises(UsageError, match=r"is not PEM.*keytool -importkeystore.*openssl pkcs12"):
        make_tls_context(TlsSettings(keystore_location=str(store)))


def test_no_key_is_left_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError):
        make_tls_context(TlsSettings(keystore_key="b", keystore_certificate_chain="c"))
    assert list(tmp_path.iterdir()) == []


def test_buffer_sizes_of_a_real_socket() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        connected = transport.get_extra_info("socket")

        def sizes() -> tuple[int, int]:
            return (
                connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
                connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            )

        untouched = sizes()
        set_buffer_sizes(transport, -1, -1)
        assert sizes() == untouched
        set_buffer_sizes(transport, 20_000, 30_000)
        # Linux doubles what it is asked for, macOS does not.
        assert sizes() in ((20_000, 30_000), (40_000, 60_000))
        transport.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
