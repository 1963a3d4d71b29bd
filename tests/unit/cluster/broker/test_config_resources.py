"""ListConfigResources (`trimtab.cluster.broker.handlers.config_resources`, KIP-1142)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trimtab.kafka.wire.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

TOPICS = [("t", TOPIC), ("u", TOPIC)]
BROKERS = [("0", BROKER), ("1", BROKER)]
LOGGERS = [("0", LOGGER), ("1", LOGGER)]


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([], TOPICS + BROKERS + LOGGERS),
        ([TOPIC], TOPICS),
        ([BROKER], BROKERS),
        ([LOGGER, TOPIC], TOPICS + LOGGERS),
        ([CLIENT_METRICS], []),
        ([GROUP], []),
    ],
)
@pytest.mark.kip(1142)
@pytest.mark.run(brokers=2)
async def test_resources_are_listed_by_type(
    lab: Lab, kinds: list[int], found: list[tuple[str, int]]
) -> None:
    for name in ("t", "u"):
        await lab.create_topic(name)
    request = ListConfigResourcesRequest(resource_types=kinds)
    for broker in range(2):
        response = await lab.connect(broker).ask(request, 1)
        listed = [(each.resource_name, each.resource_type) for each in response.config_resources]
        assert (response.error_code, listed) == (ErrorCode.NONE, found)


async def test_the_first_version_lists_client_metrics_alone(lab: Lab) -> None:
    await lab.create_topic("t")
    response = await lab.connect().ask(ListConfigResourcesRequest(), 0)
    assert (response.error_code, response.config_resources) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("kinds", [[1], [TOPIC, 0], [64]])
async def test_an_unknown_resource_type_is_refused(lab: Lab, kinds: list[int]) -> None:
    await lab.create_topic("t")
    response = await lab.connect().ask(ListConfigResourcesRequest(resource_types=kinds), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.config_resources == []


@pytest.mark.kip(1142)
def test_groups_and_client_metrics_are_listed_while_they_have_options(lab: Lab) -> None:
    async def scenario() -> None:
        client = lab.connect()
        for kind, name, option in (
            (CLIENT_METRICS, "m", "interval.ms"),
            (GROUP, "g", "share.record.lock.duration.ms"),
        ):
            for operation, found in ((0, [(name, kind)]), (1, [])):
                value = "20000" if operation == 0 else None
                change = AlterableConfig(name=option, config_operation=operation, value=value)
                resource = AlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=[change]
                )
                altered = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
                assert [each.error_code for each in altered.responses] == [ErrorCode.NONE]
                assert await listed(client, [kind]) == found
                if kind == CLIENT_METRICS:
                    assert await listed(client, None) == found

    async def listed(client: Any, kinds: list[int] | None) -> list[tuple[str, int]]:
        """In version 0 if no kinds are given."""
        request = ListConfigResourcesRequest(resource_types=kinds or [])
        response = await client.ask(request, 0 if kinds is None else 1)
        return [(each.resource_name, each.resource_type) for each in response.config_resources]

    lab.run(scenario)
