"""The demo's cluster in a process of its own."""

from __future__ import annotations

import pytest

from trimtab import Admin
from trimtab.cli.demo.cluster_apart import cluster_apart
from trimtab.errors import Unavailable


def test_it_serves_with_its_racks_and_ends_with_the_block() -> None:
    with cluster_apart(["a", "b"], slow_broker=0, slow_ms=1) as servers, Admin(servers) as admin:
        assert [node.rack for node in admin.cluster().nodes] == ["a", "b"]
    with (
        Admin(servers, default_api_timeout_ms=100) as admin,
        pytest.raises(Unavailable, match="no broker can be reached"),
    ):
        admin.cluster()


def test_one_that_does_not_start_is_an_error() -> None:
    with (
        pytest.raises(Unavailable, match="did not start"),
        cluster_apart(["a"], slow_broker=7, slow_ms=1),
    ):
        pytest.fail("there is no broker 7 to slow down")
