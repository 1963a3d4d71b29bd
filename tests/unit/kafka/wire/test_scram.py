"""SCRAM's messages, against the RFC's example, another implementation, and forgers."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from trimtab.kafka.errors import AuthenticationFailed
from trimtab.kafka.wire.scram import ScramClient, ScramServer, make_nonce

SECRET = "pencil"


def test_scram_sha_256_as_in_rfc_7677() -> None:
    exchange = ScramClient("sha256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert exchange.begin() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.answer(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


class OtherServer:
    """The broker's side of RFC 5802, written apart from the client's."""

    def __init__(self, hash_name: str, password: str, iterations: int = 4096) -> None:
        self.hash_name, self.iterations = hash_name, iterations
        self.salt = b"seven seas"
        self.salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), self.salt, iterations)
        self.first_bare = b""
        self.first = b""

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self.hash_name).digest()

    def begin(self, message: bytes) -> bytes:
        self.first_bare = message.removeprefix(b"n,,")
        nonce = self.first_bare.partition(b"r=")[2]
        salt = base64.b64encode(self.salt)
        self.first = b"r=%s-more,s=%s,i=%d" % (nonce, salt, self.iterations)
        return self.first

    def finish(self, message: bytes) -> bytes | None:
        """The broker's last message; None if the proof is wrong."""
        without_proof, _, proof = message.rpartition(b",p=")
        signed = b",".join((self.first_bare, self.first, without_proof))
        client_key = self.hmac(self.salted, b"Client Key")
        stored = hashlib.new(self.hash_name, client_key).digest()
        signature = self.hmac(stored, signed)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, key).digest() != stored:
            return None
        server_key = self.hmac(self.salted, b"Server Key")
        return b"v=" + base64.b64encode(self.hmac(server_key, signed))


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_scram_convinces_a_server_and_is_convinced(hash_name: str) -> None:
    server = OtherServer(hash_name, SECRET)
    exchange = ScramClient(hash_name, "us=e,r", SECRET, "nonce")
    first = exchange.begin()
    assert first == b"n,,n=us=3De=2Cr,r=nonce"
    answer = exchange.answer(server.begin(first))
    assert answer is not None
    last = server.finish(answer)
    assert last is not None
    assert exchange.answer(last) is None


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    server = OtherServer("sha256", "guess")
    exchange = ScramClient("sha256", "user", SECRET, "nonce")
    answer = exchange.answer(server.begin(exchange.begin()))
    assert answer is not None
    assert server.finish(answer) is None
    for claim in (b"v=" + base64.b64encode(bytes(32)), b"", b"v=%%%"):
        with pytest.raises(AuthenticationFailed, match="could not prove"):
            exchange.answer(claim)
    with pytest.raises(AuthenticationFailed, match="invalid-proof"):
        exchange.answer(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=other,s=YQ==,i=4096", "does not continue"),
        (b"r=nonce,s=YQ==,i=4096", "does not continue"),
        (b"r=nonce2,s=YQ==,i=1", "1 SCRAM iterations"),
        (b"r=nonce2,s=YQ==,i=999999999", "999999999 SCRAM iterations"),
        (b"r=nonce2,s=YQ==", "cannot be read"),
        (b"r=nonce2,s=?,i=4096", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"m=ext,r=nonce2,s=YQ==,i=4096", "extension"),
    ],
)
def test_a_challenge_that_will_not_do(challenge: bytes, why: str) -> None:
    exchange = ScramClient("sha256", "user", SECRET, "nonce")
    exchange.begin()
    with pytest.raises(AuthenticationFailed, match=why):
        exchange.answer(challenge)


# The server's side


def serve(nonce: str = "more") -> ScramServer:
    return ScramServer("sha256", "user", SECRET, b"salt", nonce)


def begin(server: ScramServer, name: str = "user", password: str = SECRET) -> bytes:
    """A client's proof."""
    client = ScramClient("sha256", name, password, "nonce", "to=me")
    proof = client.answer(server.begin(client.begin()))
    assert proof is not None
    return proof


def test_both_sides_are_convinced_and_the_extension_is_told() -> None:
    server = serve()
    client = ScramClient("sha256", "user", SECRET, "nonce", "to=me")
    proof = client.answer(server.begin(client.begin()))
    assert proof is not None
    assert client.answer(server.finish(proof)) is None
    assert server.extension == "to=me"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"y,,n=user,r=nonce",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,a=user,n=user,r=nonce",
        b"n,,n=user,r=",
        b"n,,n=user,r=no\x00nce",
        b"n,,m=ext,n=user,r=nonce",
        b"n,,n=user,r=" + b"a" * 1024,
        b"\xff" * 40,
    ],
)
def test_a_first_message_that_will_not_do(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        serve().begin(message)


def test_a_proof_is_good_for_one_exchange_as_it_was_sent() -> None:
    proof = begin(serve())
    server = serve()
    begin(server)
    head, _, text = proof.rpartition(b"p=")
    raw = bytearray(base64.b64decode(text))
    flipped = bytes([*raw[:-1], raw[-1] ^ 1])
    for forged in (
        b"",
        head,
        proof[:-4],
        proof + b",x=y",
        b"x=y," + proof,
        head.replace(b"biws", b"eSws") + b"p=" + text,
        head + b"p=" + base64.b64encode(flipped),
        head + b"p=" + base64.b64encode(bytes(reversed(raw))),
        head + b"p=" + base64.b64encode(bytes(32)),
        head + b"p=%%%",
    ):
        with pytest.raises(AuthenticationFailed):
            server.finish(forged)
    server.finish(proof)
    again = serve(nonce="another")  # the same client's nonce, and a new one of the server
    begin(again)
    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        again.finish(proof)
    forged = proof.replace(b"r=noncemore", b"r=nonceanother")
    with pytest.raises(AuthenticationFailed, match="does not know"):
        again.finish(forged)


@pytest.mark.parametrize(("name", "password"), [("user", "guess"), ("root", SECRET)])
def test_another_password_and_another_user_learn_the_same(name: str, password: str) -> None:
    server = serve()
    proof = begin(server, name, password)
    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        server.finish(proof)


def test_the_proof_covers_the_extension() -> None:
    server = serve()
    client = ScramClient("sha256", "user", SECRET, "nonce", "to=me")
    proof = client.answer(server.begin(client.begin().replace(b"to=me", b"to=you")))
    assert proof is not None
    with pytest.raises(AuthenticationFailed, match="does not know"):
        server.finish(proof)


def test_nonces_are_long_printable_and_never_the_same() -> None:
    nonces = {make_nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    assert all(len(nonce) >= 32 and nonce.isascii() and "," not in nonce for nonce in nonces)
