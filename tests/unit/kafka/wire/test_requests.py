"""What a request's class knows: its API key and its response
(`trimtab.kafka.wire.schema.Request`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import trimtab
from trimtab.kafka.wire.messages import APIS, APIS_BY_REQUEST, Api
from trimtab.kafka.wire.schema import Request, response_of, schema

APIS_BY_NAME = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


@APIS_BY_NAME
def test_a_request_names_its_response(api: Api) -> None:
    assert issubclass(api.request, Request)
    assert response_of(api.request) is api.response
    assert api.response.__name__ == f"{api.name}Response"
    assert not issubclass(api.response, Request)


@APIS_BY_NAME
def test_a_request_knows_its_api_key(api: Api) -> None:
    assert api.request.api_key == schema(api.request).api_key == api.key
    assert schema(api.response).api_key == api.key


def test_every_declared_request_is_in_both_tables() -> None:
    files = (Path(trimtab.__file__).parent / "kafka" / "wire" / "messages").glob("*.py")
    declared = sum(path.read_text().count("(Request[") for path in files)
    assert len(APIS_BY_REQUEST) == len(APIS) == declared
