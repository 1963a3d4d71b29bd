"""SCRAM's messages, of both sides, without channel binding.

    client                                     server
    n,,n=USER,r=NONCE[,EXTENSION]      ─▶
                                       ◀─      r=NONCE+MORE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+MORE,p=PROOF        ─▶
                                       ◀─      v=SIGNATURE

Each side proves that it knows the password, and sends nothing from which it could be found, if it
cannot be guessed. Both sign the whole exchange with both nonces, so none can be used again.

Source: RFC 5802 and 7677; Kafka's `ScramSaslClient`, `ScramSaslServer`, `ScramMessages`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from secrets import token_urlsafe

from trimtab.kafka.errors import AuthenticationFailed

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms, and their hash functions as `hashlib` knows them."""
LEAST_ITERATIONS = 4096
_MOST_ITERATIONS = 100_000
"""Kafka's servers demand 4096 by default, and 16,384 at most."""
_MOST_BYTES = 1024
"""A client's message is longer only by mistake, or by malice."""
_CLIENT_FIRST = re.compile(r"n,,(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,(.*))?)")
_salted = lru_cache(maxsize=16)(hashlib.pbkdf2_hmac)
"""It takes a millisecond, and its result is the same for all connections."""


def make_nonce() -> str:
    """Unguessable, unique text (192 random bits), without commas."""
    return token_urlsafe(24)


class ScramClient:
    """The client's side.

    Args:
        hash_name: as `hashlib` knows it.
        nonce: printable text without commas, different in each exchange.
        extension: `name=value`, which the server may understand, and which the proof covers.
        most_iterations: the largest number that the server may demand; they take time.
    """

    def __init__(
        self,
        hash_name: str,
        username: str,
        password: str,
        nonce: str,
        extension: str = "",
        most_iterations: int = _MOST_ITERATIONS,
    ) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce
        self._most_iterations = most_iterations
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}" + (f",{extension}" if extension else "")
        self._server_signature: bytes | None = None
        self._is_done = False

    def begin(self) -> bytes:
        """The first message."""
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to a message of the server; None if the server has proven itself.

        Raises:
            AuthenticationFailed: it did not prove itself, or refuses; without its name.
        """
        if self._is_done:
            return None
        if self._server_signature is None:
            return self._prove(challenge)
        self._verify(challenge)
        self._is_done = True
        return None

    def _prove(self, server_first: bytes) -> bytes:
        said = _attributes(server_first)
        try:
            nonce = said["r"]
            salt = base64.b64decode(said["s"], validate=True)
            iterations = int(said["i"])
        except (KeyError, ValueError) as error:
            raise AuthenticationFailed("the broker's SCRAM challenge cannot be read") from error
        if "m" in said:
            raise AuthenticationFailed("the broker asks for a SCRAM extension that is not known")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the broker's SCRAM nonce does not continue the client's")
        if not LEAST_ITERATIONS <= iterations <= self._most_iterations:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} SCRAM iterations; {LEAST_ITERATIONS} to"
                f" {self._most_iterations} are accepted"
            )
        without_proof = f"c=biws,r={nonce}".encode()
        message = b",".join((self._first_bare.encode(), server_first, without_proof))
        salted = _salted(self._hash, self._password, salt, iterations)
        client_key, server_key = _keys(self._hash, salted)
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, message, self._hash))
        self._server_signature = hmac.digest(server_key, message, self._hash)
        return without_proof + b",p=" + base64.b64encode(proof)

    def _verify(self, server_final: bytes) -> None:
        said = _attributes(server_final)
        if "e" in said:
            raise AuthenticationFailed(f"the broker says {said['e']}")
        try:
            signature = base64.b64decode(said.get("v", ""), validate=True)
        except binascii.Error:
            signature = b""
        if not hmac.compare_digest(signature, self._server_signature or b""):
            raise AuthenticationFailed(
                "the broker could not prove that it knows the password: this is not the broker it"
                " claims to be"
            )


class ScramServer:
    """The server's side, for one user and one exchange.

    Args:
        hash_name: as `hashlib` knows it.
        nonce: as the client's.

    Attributes:
        extension: the client's, once it has sent its first message.
    """

    def __init__(
        self, hash_name: str, username: str, password: str, salt: bytes, nonce: str
    ) -> None:
        self._hash = hash_name
        self._username = username
        self._salt = salt
        salted = _salted(hash_name, password.encode(), salt, LEAST_ITERATIONS)
        client_key, self._server_key = _keys(hash_name, salted)
        self._stored_key = hashlib.new(hash_name, client_key).digest()
        self._nonce = nonce
        self._so_far = b""
        self._without_proof = b""
        self._is_user = False
        self.extension = ""

    def begin(self, client_first: bytes) -> bytes:
        """The answer to the client's first message. An unknown user learns nothing from it.

        Raises:
            AuthenticationFailed: it is no such message.
        """
        found = None
        if len(client_first) <= _MOST_BYTES:
            found = _CLIENT_FIRST.fullmatch(client_first.decode("utf-8", "replace"))
        if found is None:
            raise AuthenticationFailed("the client's first SCRAM message cannot be read")
        bare, username, nonce, extension = found.groups()
        self._is_user = username == self._username
        self.extension = extension or ""
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._salt).decode()
        server_first = f"r={self._nonce},s={salt},i={LEAST_ITERATIONS}".encode()
        self._without_proof = f"c=biws,r={self._nonce}".encode()
        self._so_far = b",".join((bare.encode(), server_first, self._without_proof))
        return server_first

    def finish(self, client_final: bytes) -> bytes:
        """The answer to the client's proof.

        Raises:
            AuthenticationFailed: it does not prove that the client knows the password.
        """
        without_proof, _, text = client_final.rpartition(b",p=")
        try:
            proof = base64.b64decode(text, validate=True)
        except binascii.Error:
            proof = b""
        signature = hmac.digest(self._stored_key, self._so_far, self._hash)
        if len(proof) != len(signature) or without_proof != self._without_proof:
            raise AuthenticationFailed("the client's SCRAM proof cannot be read")
        shown = hashlib.new(self._hash, _xor(proof, signature)).digest()
        if not hmac.compare_digest(shown, self._stored_key) or not self._is_user:
            raise AuthenticationFailed("the client does not know the password")
        return b"v=" + base64.b64encode(hmac.digest(self._server_key, self._so_far, self._hash))


def _keys(hash_name: str, salted: bytes) -> tuple[bytes, bytes]:
    """The client's key and the server's."""
    return (
        hmac.digest(salted, b"Client Key", hash_name),
        hmac.digest(salted, b"Server Key", hash_name),
    )


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _attributes(message: bytes) -> dict[str, str]:
    """`k=value,k=value`, RFC 5802's form of every message."""
    pairs = (part.partition("=") for part in message.decode("utf-8", "replace").split(","))
    return {name: value for name, _, value in pairs}
