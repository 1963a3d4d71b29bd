"""Tokens from options that are texts: an endpoint of this process, a file, and unsigned ones."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.token_endpoint import token_endpoint
from trimtab.client.network.authentication import OAuthBearer
from trimtab.client.network.options import Options
from trimtab.client.options import CONSUMER
from trimtab.kafka.errors import AuthenticationFailed, Unavailable, UsageError
from trimtab.threads.clock import wall_clock

JAVA = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{JAVA}.OAuthBearerLoginModule required"
URL = "sasl.oauthbearer.token.endpoint.url"
SECRET = "s3cret/+="
CLIENT = {
    "sasl.oauthbearer.client.credentials.client.id": "id",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
}


def credentials(given: dict[str, Any]) -> OAuthBearer:
    base = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.retry.backoff.ms": "1",
    }
    found = Options(CONSUMER, {**base, **given}).connection_options().credentials
    assert isinstance(found, OAuthBearer)
    return found


def first_message(made: OAuthBearer) -> str:
    async def begin() -> bytes:
        return (await made.start()).begin()

    return asyncio.run(begin()).decode()


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def jwt(**claims: Any) -> str:
    return f"{encoded({'alg': 'RS256'})}.{encoded(claims)}.c2ln"


def claims_of(message: str) -> dict[str, Any]:
    payload = message.split("Bearer ")[1].split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return found


@pytest.mark.kip(768)
@pytest.mark.parametrize(
    ("how", "basic"),
    [
        (
            {"sasl.jaas.config": f'{MODULE} clientId="id" clientSecret="{SECRET}" scope="a b&c";'},
            f"id:{SECRET}",
        ),
        ({**CLIENT, "sasl.oauthbearer.scope": "a b&c"}, f"id:{SECRET}"),
        (
            {
                **CLIENT,
                "sasl.oauthbearer.scope": "a b&c",
                "sasl.oauthbearer.header.urlencode": "true",
            },
            "id:s3cret%2F%2B%3D",
        ),
    ],
    ids=["JAAS", "options", "encoded"],
)
@pytest.mark.parametrize(
    "handler",
    [f"{JAVA}.OAuthBearerLoginCallbackHandler", f"{JAVA}.secured.OAuthBearerLoginCallbackHandler"],
)
def test_an_endpoint_gives_a_token(how: dict[str, str], basic: str, handler: str) -> None:
    token = jwt(sub="alice", exp=wall_clock() + 100)
    with token_endpoint(lambda before: (200, {"access_token": token})) as endpoint:
        more = {URL: f"{endpoint.url}?tenant=1", "sasl.login.callback.handler.class": handler}
        made = credentials({**how, **more})
        assert first_message(made) == f"n,,\x01auth=Bearer {token}\x01\x01"
    [asked] = endpoint.asked
    assert asked.path == "/token?tenant=1"
    assert asked.body == "grant_type=client_credentials&scope=a+b%26c"
    assert base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")).decode() == basic
    assert asked.headers["Content-Type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (
            {"access_token": jwt(exp=wall_clock() + 100_000), "expires_in": 0},
            1,
        ),  # longer than all tests take
        ({"access_token": "opaque", "expires_in": 1000}, 1),
        ({"access_token": "opaque"}, 2),
        ({"access_token": jwt(exp=wall_clock() - 10), "expires_in": 1000}, 2),
    ],
    ids=["its claim", "what the endpoint says", "unknown", "over"],
)
def test_how_long_a_token_is_kept(answer: dict[str, Any], requests: int) -> None:
    async def twice(made: OAuthBearer) -> None:
        await made.start()
        await made.start()

    with token_endpoint(lambda before: (200, answer)) as endpoint:
        asyncio.run(twice(credentials({**CLIENT, URL: endpoint.url})))
    assert len(endpoint.asked) == requests


def test_an_endpoint_that_fails_is_asked_again() -> None:
    answers: list[tuple[int, object]] = [(503, {}), (0, None), (200, {"access_token": "token"})]
    with token_endpoint(lambda before: answers[before]) as endpoint:
        made = credentials({**CLIENT, URL: endpoint.url})
        assert "Bearer token\x01" in first_message(made)
    assert len(endpoint.asked) == 3


def test_an_endpoint_that_goes_on_failing() -> None:
    with token_endpoint(lambda before: (503, {"error": "busy"})) as endpoint:
        made = credentials({**CLIENT, URL: endpoint.url, "sasl.login.retry.backoff.max.ms": "50"})
        with pytest.raises(Unavailable, match=r"http://127.*/token answers with status 503: busy"):
            first_message(made)
    assert len(endpoint.asked) > 1


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (
            401,
            {"error": "invalid_client", "error_description": f"no {SECRET}\n"},
            "401: invalid_cl",
        ),
        (400, ["odd"], "status 400$"),
        (200, {"access_token": "two words"}, "has no token"),
        (200, {"access_token": None}, "has no token"),
        (200, "text", "has no token"),
    ],
)
def test_an_endpoint_that_refuses_is_asked_once(status: int, said: object, why: str) -> None:
    with token_endpoint(lambda before: (status, said)) as endpoint:
        made = credentials({**CLIENT, URL: endpoint.url})
        with pytest.raises(AuthenticationFailed, match=why) as caught:
            first_message(made)
    assert len(endpoint.asked) == 1
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_credentials_do_not_follow_a_redirect() -> None:
    with token_endpoint(lambda before: (307, {})) as endpoint:
        more = {URL: endpoint.url, "sasl.login.retry.backoff.max.ms": "0"}
        with pytest.raises(Unavailable, match="status 307"):
            first_message(credentials({**CLIENT, **more}))
    assert [asked.path for asked in endpoint.asked] == ["/token"]


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("token\n")
    made = credentials({URL: path.as_uri()})
    assert "Bearer token\x01" in first_message(made)
    path.write_text("next")
    assert "Bearer next\x01" in first_message(made)
    path.unlink()
    missing = {URL: path.as_uri(), "sasl.login.retry.backoff.max.ms": "0"}
    with pytest.raises(Unavailable, match=r"token cannot be read.*No such file"):
        first_message(credentials(missing))


@pytest.mark.kip(255)
def test_a_token_without_a_signature() -> None:
    jaas = (
        f'{MODULE} unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_level="3"'
        ' unsecuredLoginListClaim_scope="|read|write" unsecuredLoginLifetimeSeconds="60"'
        ' unsecuredLoginExtension_traceId="123";'
    )
    before = wall_clock()
    message = first_message(credentials({"sasl.jaas.config": jaas}))
    assert message.endswith(".\x01traceId=123\x01\x01")
    claims = claims_of(message)
    assert before <= claims["iat"] <= wall_clock()
    assert claims == {
        "exp": pytest.approx(claims["iat"] + 60),
        "iat": claims["iat"],
        "sub": "alice",
        "level": 3.0,
        "scope": ["read", "write"],
    }


@pytest.mark.kip(342)
def test_extensions_go_with_the_token() -> None:
    jaas = (
        f'{MODULE} clientId="id" clientSecret="s" extension_logicalCluster="lkc-1"'
        ' extension_identityPoolId="pool-2";'
    )
    with token_endpoint(lambda before: (200, {"access_token": "t"})) as endpoint:
        message = first_message(credentials({"sasl.jaas.config": jaas, URL: endpoint.url}))
    assert message == (
        "n,,\x01auth=Bearer t\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({URL: "https://a/t"}, r"client\.credentials\.client\.id is missing"),
        (
            {URL: "https://a/t", "sasl.jaas.config": f'{MODULE} clientId="i";'},
            r"client\.secret is missing: .*clientSecret in sasl\.jaas\.config",
        ),
        ({URL: "ftp://a/t", **CLIENT}, r"must be https://HOST/PATH"),
        ({URL: f"https://u:{SECRET}@a/t", **CLIENT}, r"without a user"),
        ({URL: "https://a:x/t", **CLIENT}, r"must be https://HOST/PATH"),
        ({URL: "https://a/t", "sasl.oauthbearer.token": str, **CLIENT}, r"both given"),
        (
            {"sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="a";', URL: "https://a"},
            r"keep one of them",
        ),
        (
            {"sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_user="a";'},
            r"unsecuredLoginStringClaim_sub is missing",
        ),
        (
            {"sasl.jaas.config": f'{MODULE} unsecuredLoginNumberClaim_exp="1";'},
            r"iat and exp are set from the clock",
        ),
        (
            {
                "sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="a"'
                f' unsecuredLoginLifetimeSeconds="x";'
            },
            r"'x' is not a number",
        ),
        (
            {
                "sasl.jaas.config": f'{MODULE} clientID="i" clientSecret="{SECRET}";',
                URL: "http://a",
            },
            r"clientID is not for trimtab here",
        ),
        (
            {
                "sasl.jaas.config": f'{MODULE} clientId="i" clientSecret="s" extension_auth="x";',
                URL: "http://a",
            },
            r"extension_auth: a SASL extension has a name",
        ),
        (
            {"sasl.jaas.config": 'x.PlainLoginModule required username="u" password="p";'},
            r"needs OAuthBearerLoginModule",
        ),
        (
            {"sasl.login.callback.handler.class": f"{JAVA}.OAuthBearerLoginCallbackHandler"},
            r"token\.endpoint\.url is missing",
        ),
        (
            {"sasl.login.callback.handler.class": "com.acme.Tokens", URL: "http://a", **CLIENT},
            r"handler\.class='com\.acme\.Tokens': a class of Java's cannot be run",
        ),
        (
            {
                "sasl.login.callback.handler.class": (
                    "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
                )
            },
            r"AWS_MSK_IAM is not built",
        ),
    ],
)
def test_what_is_refused_at_once(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        credentials(given)
    assert SECRET not in str(caught.value)
