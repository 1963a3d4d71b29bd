"""TLS and socket buffers for a client's connections."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trimtab.kafka.errors import UsageError


class TlsSettings(NamedTuple):
    """Kafka's `ssl.*` options that trimtab supports; all certificates and keys are PEM.

    Attributes:
        truststore_location: a file with the certificates to trust; empty for the system's.
        truststore_certificates: the same, as text.
        keystore_location: a file with this client's key and certificate chain; empty for none.
        keystore_key: this client's key, as text.
        keystore_certificate_chain: its certificates, its own first, as text.
        key_password: the password of an encrypted key; None if it is not encrypted.
        checks_host_name: whether a broker's certificate must be for the host name in its address.
        protocols: `TLSv1.2`, `TLSv1.3` or both.
        cipher_suites: by their IANA (Java) names; empty for OpenSSL's choice.
    """

    truststore_location: str = ""
    truststore_certificates: str = ""
    keystore_location: str = ""
    keystore_key: str = ""
    keystore_certificate_chain: str = ""
    key_password: str | None = None
    checks_host_name: bool = True
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()


def make_tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context for a client's TLS connections.

    Raises:
        UsageError: a file cannot be read, is not PEM, or lacks the certificates or the key; a key's
            password is missing or wrong; OpenSSL lacks the protocols or cipher suites.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    _choose_protocols(context, settings.protocols)
    if settings.cipher_suites:
        _choose_cipher_suites(context, settings.cipher_suites)
    _load_truststore(context, settings)
    _load_keystore(context, settings)
    return context


def set_buffer_sizes(transport: asyncio.BaseTransport, send: int, receive: int) -> None:
    """Set the sizes of a connection's socket buffers, in bytes; -1 leaves them to the system.

    Does nothing to a simulated transport, which has no socket.
    """
    connected = transport.get_extra_info("socket")
    if connected is None:
        return
    if send >= 0:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
    if receive >= 0:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def _choose_protocols(context: ssl.SSLContext, protocols: tuple[str, ...]) -> None:
    versions = sorted(_VERSIONS[name] for name in protocols)
    if not versions:
        raise UsageError("ssl.enabled.protocols is empty; give TLSv1.2, TLSv1.3 or both")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _choose_cipher_suites(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    """Only suites up to TLS 1.2 can be chosen: OpenSSL configures those of 1.3 separately."""
    older = [name for name in suites if "_WITH_" in name]
    if len(older) < len(suites):
        newer = ", ".join(name for name in suites if "_WITH_" not in name)
        raise UsageError(
            f"ssl.cipher.suites names {newer}: Python cannot choose among the suites of TLS 1.3;"
            " leave it out, or name suites of TLS 1.2 only"
        )
    try:
        context.set_ciphers(":".join(map(_openssl_name, older)))
    except ssl.SSLError as error:
        raise UsageError(
            f"ssl.cipher.suites={','.join(suites)}: OpenSSL has none of them; IANA's names are"
            " expected, such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        ) from error
    if context.minimum_version == ssl.TLSVersion.TLSv1_3:
        raise UsageError(
            "ssl.cipher.suites names suites of TLS 1.2, but ssl.enabled.protocols is TLSv1.3 alone;"
            " leave out one of the two"
        )
    # As in Java, a version without one of the suites is not offered.
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def _openssl_name(iana: str) -> str:
    exchange, _, cipher = iana.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher)
    cipher = cipher.replace("_CBC_SHA", "_SHA").replace(
        "CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305"
    )
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return name.replace("_", "-")


def _load_truststore(context: ssl.SSLContext, settings: TlsSettings) -> None:
    location, text = settings.truststore_location, settings.truststore_certificates
    if location and text:
        raise UsageError(
            "ssl.truststore.location and ssl.truststore.certificates are both given; keep one"
        )
    if location:
        text = _read_pem("ssl.truststore.location", location, _CONVERT_TRUSTSTORE)
    if not text:
        context.load_default_certs()
        return
    subject = f"ssl.truststore.location={location}" if location else "ssl.truststore.certificates"
    try:
        context.load_verify_locations(cadata=_only_certificates(text))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{subject} holds no certificate that can be read: {error}") from error


def _load_keystore(context: ssl.SSLContext, settings: TlsSettings) -> None:
    location = settings.keystore_location
    key, chain = settings.keystore_key, settings.keystore_certificate_chain
    if location and (key or chain):
        raise UsageError(
            "ssl.keystore.location and ssl.keystore.key are both given; keep the file, or the key"
            " with ssl.keystore.certificate.chain"
        )
    if bool(key) != bool(chain):
        missing = "ssl.keystore.certificate.chain" if key else "ssl.keystore.key"
        raise UsageError(f"{missing} is missing: key and certificate chain go together")
    if location:
        _read_pem("ssl.keystore.location", location, _CONVERT_KEYSTORE)
        _load_chain(context, location, f"ssl.keystore.location={location}", settings.key_password)
    elif key:
        with _private_file(f"{key}\n{chain}\n") as path:
            _load_chain(context, path, "ssl.keystore.key", settings.key_password)


def _load_chain(context: ssl.SSLContext, path: str, subject: str, password: str | None) -> None:
    def tell_password() -> str:
        # Without this callback OpenSSL would prompt on the terminal.
        if password is None:
            raise UsageError(f"{subject}: the key is encrypted; give ssl.key.password")
        return password

    try:
        context.load_cert_chain(path, password=tell_password)
    except ssl.SSLError as error:
        wrong = " or ssl.key.password is wrong" if password is not None else ""
        raise UsageError(
            f"{subject}: the private key and its certificate chain cannot be read{wrong}: {error}"
        ) from error


@contextmanager
def _private_file(text: str) -> Iterator[str]:
    """A file that only this user may read, removed at the end of the block.

    Needed because Python's ssl reads keys only from files.
    """
    descriptor, path = tempfile.mkstemp(prefix="trimtab-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


_CONVERT_TRUSTSTORE = "keytool -list -rfc -keystore {} > truststore.pem"
_CONVERT_KEYSTORE = (
    "keytool -importkeystore -srckeystore {} -destkeystore keystore.p12 -deststoretype PKCS12 &&"
    " openssl pkcs12 -in keystore.p12 -out keystore.pem"
)


def _read_pem(option: str, path: str, convert: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise UsageError(f"{option}={path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise UsageError(
            f"{option}={path} is not PEM (perhaps JKS or PKCS12, Java's own); convert it:"
            f" {convert.format(path)}"
        )
    return data.decode("utf-8", "replace")


_CERTIFICATE = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)


def _only_certificates(text: str) -> str:
    """The certificates without `keytool`'s text between them, which need not be ASCII."""
    return "\n".join(_CERTIFICATE.findall(text)) or text
