"""`trimtab.cluster.broker.handlers.acls`: the same responses as Apache Kafka without an
authorizer."""

from __future__ import annotations

import pytest

from tests.unit.cluster.broker.conftest import Lab
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.create_acls import AclCreation, CreateAclsRequest
from trimtab.kafka.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from trimtab.kafka.wire.messages.describe_acls import DescribeAclsRequest

ANY, READ, ALLOW, TOPIC = 1, 3, 3, 2
MESSAGE = "No Authorizer is configured."


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_describe_acls_answers_security_disabled(lab: Lab, version: int) -> None:
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    response = await lab.connect().ask(request, version)
    assert response.error_code == ErrorCode.SECURITY_DISABLED
    assert response.error_message == "No Authorizer is configured on the broker"
    assert response.resources == []


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_each_acl_to_create_is_refused(lab: Lab, version: int) -> None:
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=TOPIC,
                resource_name=name,
                principal="User:x",
                host="*",
                operation=READ,
                permission_type=ALLOW,
            )
            for name in ("a", "b")
        ]
    )
    response = await lab.connect().ask(request, version)
    refused = [(each.error_code, each.error_message) for each in response.results]
    assert refused == [(ErrorCode.SECURITY_DISABLED, MESSAGE)] * 2


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_each_filter_of_acls_to_delete_is_refused(lab: Lab, version: int) -> None:
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=TOPIC,
                resource_name_filter=name,
                principal_filter=None,
                host_filter=None,
                operation=READ,
                permission_type=ALLOW,
            )
            for name in ("a", "b")
        ]
    )
    response = await lab.connect().ask(request, version)
    refused = [
        (each.error_code, each.error_message, each.matching_acls)
        for each in response.filter_results
    ]
    assert refused == [(ErrorCode.SECURITY_DISABLED, MESSAGE, [])] * 2
