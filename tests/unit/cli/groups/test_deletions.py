"""`trimtab groups --delete` and `--delete-offsets`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.unit.cli.groups.conftest import Run
from trimtab import Admin, Cluster, Consumer
from trimtab.client.admin import PartlyRefused


@pytest.fixture
def busy(cluster: Cluster, admin: Admin) -> Iterator[str]:
    """A group with a member that reads `t`, and with an offset of `other`."""
    admin.alter_group_offsets("busy", {("other", 0): 0})
    with Consumer(cluster.bootstrap_servers, group_id="busy") as consumer:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 30
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
            assert time.monotonic() < deadline
        yield "busy"


def test_groups_without_members_are_deleted(admin: Admin, run: Run, busy: str) -> None:
    for group in ("one", "two", "three"):
        admin.alter_group_offsets(group, {("t", 0): 1})
    assert run("--delete", "--group", "one") == (
        *(0, "Deletion of requested consumer groups ('one') was successful.\n"),
        "",
    )
    code, shown, errors = run("--delete", "--group", "two", "--group", busy, "--group", "one")
    assert code == 1
    assert shown == "These consumer groups were deleted successfully: 'two'\n"
    assert "Group 'busy' could not be deleted: NON_EMPTY_GROUP (68)" in errors
    assert "Group 'one' could not be deleted: GROUP_ID_NOT_FOUND (69)" in errors
    shown = run("--delete", "--all-groups", "--json")[1]
    told = {each["group"]: each["deleted"] for each in map(json.loads, shown.splitlines())}
    assert (told["three"], told[busy]) == (True, False)
    assert [each.group_id for each in admin.list_groups()] == [busy]


def test_offsets_are_deleted_of_topics_that_the_group_does_not_read(
    admin: Admin, run: Run, busy: str
) -> None:
    words = ("--delete-offsets", "--group", busy)
    code, shown, errors = run(*words, "--topic", "other", "--topic", "t:0")
    assert (code, errors != "") == (1, True)
    assert [row.split()[:3] for row in shown.splitlines()[1:]] == [
        ["TOPIC", "PARTITION", "STATUS"],
        ["other", "0", "Successful"],
        ["t", "0", "Error:"],
    ]
    assert "GROUP_SUBSCRIBED_TO_TOPIC (86)" in shown
    assert ("other", 0) not in admin.list_group_offsets(busy)
    told = json.loads(run(*words, "--topic", "t:0", "--json")[1])
    assert told["partitions"] == [
        {"topic": "t", "partition": 0, "error": "GROUP_SUBSCRIBED_TO_TOPIC"}
    ]
    with pytest.raises(PartlyRefused):
        admin.delete_group_offsets(busy, [("t", 0)])


def test_offsets_of_an_idle_group_are_deleted(admin: Admin, run: Run) -> None:
    admin.alter_group_offsets("idle", {("t", 0): 1, ("t", 1): 2})
    code, shown, errors = run("--delete-offsets", "--group", "idle", "--topic", "t:1")
    assert (code, errors) == (0, "")
    assert shown == (
        "Request succeeded for deleting offsets from group idle.\n\n"
        f"{'TOPIC':15} PARTITION  {'STATUS':15}\n{'t':15} 1          {'Successful':15}\n"
    )
    assert set(admin.list_group_offsets("idle")) == {("t", 0)}
    code, shown, errors = run("--delete-offsets", "--group", "nobody", "--topic", "t:1")
    assert (code, shown) == (1, "")
    assert errors.startswith("trimtab groups: group nobody: GROUP_ID_NOT_FOUND (69)")
