"""The admin client for an event loop: each family of methods is a class of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Unpack

from trimtab.client.admin.brokers import BrokerAdmin
from trimtab.client.admin.calls import Calls
from trimtab.client.admin.configs import ConfigAdmin
from trimtab.client.admin.elections import ElectionAdmin
from trimtab.client.admin.eligible_leaders import EligibleLeaderAdmin
from trimtab.client.admin.features import FeatureAdmin
from trimtab.client.admin.group_offsets import GroupOffsetAdmin
from trimtab.client.admin.groups import GroupAdmin
from trimtab.client.admin.log_dirs import LogDirAdmin
from trimtab.client.admin.producers import ProducerAdmin
from trimtab.client.admin.quorum import QuorumAdmin
from trimtab.client.admin.reassignments import ReassignmentAdmin
from trimtab.client.admin.records import RecordAdmin
from trimtab.client.admin.replica_ends import ReplicaEndAdmin
from trimtab.client.admin.topics import TopicAdmin
from trimtab.client.admin.transactions import TransactionAdmin
from trimtab.client.fetcher.offsets import OffsetLookup
from trimtab.client.network.option_types import AdminOptions
from trimtab.client.network.session import Session
from trimtab.client.options import ADMIN, client_options


class AsyncAdmin(
    TopicAdmin,
    EligibleLeaderAdmin,
    RecordAdmin,
    ConfigAdmin,
    ReassignmentAdmin,
    ElectionAdmin,
    LogDirAdmin,
    ReplicaEndAdmin,
    TransactionAdmin,
    ProducerAdmin,
    GroupAdmin,
    GroupOffsetAdmin,
    BrokerAdmin,
    QuorumAdmin,
    FeatureAdmin,
):
    """Manages topics, configurations, replicas, groups and transactions, on an event loop.

    Args:
        bootstrap_servers, options: as for `Admin`.
        random: for jitter; a simulation passes its own.

    Every method raises `Unavailable`, with the addresses that were tried, if no broker answers
    within `default.api.timeout.ms`, and `BrokerError` if a broker refuses.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        random: Random | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        checked = client_options(ADMIN, bootstrap_servers, options)
        session = Session(checked, random or Random())
        self._calls = Calls(session)
        self._offsets = OffsetLookup(session)
        super().__init__(session, session.close)
