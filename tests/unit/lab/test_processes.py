"""A cluster in processes of its own."""

from __future__ import annotations

import pytest

from lab.processes import Trimtab
from trimtab import Admin
from trimtab.kafka.errors import Unavailable


def test_it_serves_with_its_racks_and_ends_with_the_block() -> None:
    with Trimtab(2, {0: 1}, racks=["a", "b"]) as cluster, Admin(cluster.address) as admin:
        assert [node.rack for node in admin.cluster().nodes] == ["a", "b"]
    with (
        Admin(cluster.address, default_api_timeout_ms=100) as admin,
        pytest.raises(Unavailable, match="no broker can be reached"),
    ):
        admin.cluster()


def test_one_that_does_not_start_is_an_error() -> None:
    with (
        pytest.raises(Unavailable, match=r"(?s)trimtab ended:.*--slow 7=1: brokers are 0 to 0"),
        Trimtab(1, {7: 1}),
    ):
        pytest.fail("there is no broker 7 to slow down")
