"""Reads a node's identity from Kafka's options: role, id, listener, data directory, controller.

A process is a broker or the controller, and has one plain-text listener, one directory and one
controller to connect to. Apache Kafka allows more of each; that is refused, with the fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, TypeAlias

from trimtab.cluster.config.broker import BROKER
from trimtab.cluster.config.effective import check_broker
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import Value, read

Address: TypeAlias = tuple[str, int]

BROKER_ROLE = "broker"
CONTROLLER_ROLE = "controller"

CONTROLLER_ID = 3000
"""The controller's default node id, which brokers are unlikely to have."""

LOOPBACK = "127.0.0.1"
ANY_HOST = "0.0.0.0"
"""Listens on every address of the machine."""

OWN_OPTIONS = (
    "advertised.listeners",
    "broker.id",
    "broker.rack",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "listeners",
    "log.dir",
    "log.dirs",
    "node.id",
    "process.roles",
)
"""The options that identify a node: no two nodes of a cluster have the same values."""

EMBEDDED: Mapping[str, Value] = {
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 1,
    "group.consumer.min.session.timeout.ms": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""What an embedded cluster and `trimtab cluster up` set, unless it is given: tests do not wait."""

_PORTS = {BROKER_ROLE: 9092, CONTROLLER_ROLE: 9093}
_PLAINTEXT = "PLAINTEXT"
_PROTOCOLS = (_PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@]*)):(\d{1,5})")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@]+)):(\d{1,5})")


class Given(NamedTuple):
    """The text of an option, and its source for errors, such as `server.properties, line 3`."""

    value: str
    place: str


class NodeConfig(NamedTuple):
    """The configuration of one node process.

    Attributes:
        id: its node id, unique in the cluster.
        listen: host and port to listen on; port 0 for any free one.
        advertised: host and port for other nodes and clients; None for those that it listens on.
        controller: for a broker, the controller's address; None for the controller.
        directory: its data directory; None if no option names one.
        options: all given options, for `Broker` and `ControllerNode`.
        ignored: log messages about unknown options in its file.
    """

    id: int
    listen: Address
    advertised: Address | None
    controller: Address | None
    directory: str | None
    options: dict[str, Value]
    ignored: tuple[str, ...] = ()


def read_node(role: str, given: Mapping[str, Given]) -> NodeConfig:
    """The configuration of a process with this role.

    Args:
        role: `BROKER_ROLE` or `CONTROLLER_ROLE`.
        given: broker options by name, dotted or in snake case.

    Raises:
        UsageError: an option is unknown, invalid, or enables a feature that trimtab lacks; names
            its source and the fix.
    """
    return _Reader(role, given).read()


def parse_address(text: str) -> Address:
    """The address in `host:port` or `[IPv6]:port`.

    Raises:
        UsageError: `text` has another form.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[3]) > 65535:
        raise UsageError(f"{text!r} is no address: write host:port, such as 127.0.0.1:9093")
    return found[1] or found[2], int(found[3])


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address, in the form that clients accept."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Listener(NamedTuple):
    name: str
    host: str
    port: int


class _Reader:
    def __init__(self, role: str, given: Mapping[str, Given]) -> None:
        self._role = role
        self._given: dict[str, Given] = {}
        self._values: dict[str, Value] = {}
        for written, setting in given.items():
            try:
                option = BROKER.find(written)
                value = option.check(setting.value, BROKER.kind)
            except UsageError as error:
                raise UsageError(f"{setting.place}: {error}") from error
            self._given[option.name] = setting
            if value not in (None, ()):
                self._values[option.name] = value

    def read(self) -> NodeConfig:
        self._check_role()
        listener = self._read_listener()
        controller = None
        if self._role == BROKER_ROLE:
            controller = self._find_controller()
        node_id = self._read_id()
        options = {**self._values, "node.id": node_id, "broker.id": node_id}
        check_broker(read(BROKER, options))
        return NodeConfig(
            id=node_id,
            listen=(listener.host or ANY_HOST, listener.port),
            advertised=self._read_advertised(listener),
            controller=controller,
            directory=self._read_directory(),
            options=options,
        )

    def _refuse(self, name: str, reason: str) -> NoReturn:
        given = self._given[name]
        raise UsageError(f"{given.place}: {name}={given.value}: {reason}")

    def _words(self, name: str) -> tuple[str, ...]:
        words = self._values.get(name, ())
        assert isinstance(words, tuple)
        return words

    def _check_role(self) -> None:
        roles = set(self._words("process.roles"))
        if len(roles) > 1:
            self._refuse(
                "process.roles",
                "a process has one role, so that each can be restarted alone; write "
                f"process.roles={self._role} here, and run the other with a file of its own",
            )
        if roles and roles != {self._role}:
            (other,) = roles
            self._refuse(
                "process.roles", f"this is for `trimtab {other}`, not for `trimtab {self._role}`"
            )

    # Identity

    def _read_id(self) -> int:
        node_id, broker_id = (
            value if isinstance(value, int) and value >= 0 else None
            for value in (self._values.get("node.id"), self._values.get("broker.id"))
        )
        if node_id is not None and broker_id is not None and node_id != broker_id:
            self._refuse("broker.id", f"it differs from node.id={node_id}; keep one of them")
        found = broker_id if node_id is None else node_id
        if self._role == BROKER_ROLE:
            if found is None:
                raise UsageError("a broker needs an id: give --id, or node.id in its file")
            return found
        voter = self._read_voter()
        if voter is not None and found is not None and voter[0] != found:
            self._refuse(
                "controller.quorum.voters",
                f"there is one controller, and this one is node {found}; write its id@host:port",
            )
        if found is not None:
            return found
        return CONTROLLER_ID if voter is None else voter[0]

    def _read_directory(self) -> str | None:
        for name in ("log.dirs", "log.dir"):
            words = self._words(name)
            if len(words) > 1:
                self._refuse(name, "a node has one directory; keep one")
            if words:
                return words[0]
        return None

    # Listener

    def _read_listener(self) -> _Listener:
        if not self._words("listeners"):
            return _Listener(_PLAINTEXT, LOOPBACK, _PORTS[self._role])
        listener = self._parse_listener("listeners")
        protocol = self._protocol(listener.name)
        if protocol != _PLAINTEXT:
            self._refuse(
                "listeners",
                f"{protocol} is not supported, only PLAINTEXT; write "
                f"PLAINTEXT://{listener.host}:{listener.port}, in a trusted network",
            )
        if self._role == BROKER_ROLE:
            name = self._values.get("inter.broker.listener.name", listener.name)
            if name != listener.name:
                self._refuse("inter.broker.listener.name", f"the one listener is {listener.name}")
            if listener.name in self._words("controller.listener.names"):
                self._refuse("listeners", "this is the controller's listener; write the broker's")
        else:
            names = self._words("controller.listener.names")
            if names and listener.name not in names:
                self._refuse("controller.listener.names", f"the one listener is {listener.name}")
        return listener

    def _read_advertised(self, listener: _Listener) -> Address | None:
        if not self._words("advertised.listeners"):
            return None
        advertised = self._parse_listener("advertised.listeners")
        if self._words("listeners") and advertised.name != listener.name:
            self._refuse("advertised.listeners", f"the one listener is {listener.name}")
        if advertised.host in ("", ANY_HOST, "::"):
            self._refuse(
                "advertised.listeners",
                "clients cannot connect to this host; write one that they can reach",
            )
        return advertised.host, advertised.port

    def _parse_listener(self, name: str) -> _Listener:
        words = self._words(name)
        if len(words) > 1:
            self._refuse(name, f"a {self._role} has one listener; keep one")
        found = _LISTENER.fullmatch(words[0])
        if found is None or int(found[4]) > 65535:
            self._refuse(name, f"write NAME://host:port, such as PLAINTEXT://{LOOPBACK}:9092")
        return _Listener(found[1], found[2] or found[3], int(found[4]))

    def _protocol(self, listener: str) -> str:
        """The protocol of a listener with this name (Kafka's
        `AbstractKafkaConfig.effectiveListenerSecurityProtocolMap`)."""
        option = "listener.security.protocol.map"
        # Without a map the controller's listeners are plain text.
        known = dict.fromkeys(
            ("CONTROLLER", *self._words("controller.listener.names")), _PLAINTEXT
        ) | {name: name for name in _PROTOCOLS}
        if option in self._values:
            text = self._values[option]
            assert isinstance(text, str)
            known = {}
            for pair in filter(None, text.split(",")):
                name, colon, protocol = pair.strip().partition(":")
                if not colon or protocol not in _PROTOCOLS:
                    self._refuse(
                        option, f"{pair.strip()!r} is not NAME:PROTOCOL, such as CLIENTS:PLAINTEXT"
                    )
                known[name] = protocol
        if listener not in known:
            self._refuse(
                "listeners",
                f"the protocol of {listener} is not given; write listener.security.protocol.map="
                f"{listener}:PLAINTEXT, or PLAINTEXT://…",
            )
        return known[listener]

    # Controller

    def _find_controller(self) -> Address:
        name = "controller.quorum.bootstrap.servers"
        voter = self._read_voter()
        words = self._words(name)
        if not words:
            if voter is None:
                raise UsageError(
                    f"a broker needs a controller's address: give --controller HOST:PORT, or {name}"
                )
            return voter[1]
        if len(words) > 1:
            self._refuse(name, "there is one controller; keep its address")
        try:
            return parse_address(words[0])
        except UsageError as error:
            self._refuse(name, str(error))

    def _read_voter(self) -> tuple[int, Address] | None:
        """The controller's id and address."""
        name = "controller.quorum.voters"
        words = self._words(name)
        if not words:
            return None
        if len(words) > 1:
            self._refuse(name, "there is one controller, and no other voter; keep one")
        node_id, _, address = words[0].rpartition("@")
        try:
            return int(node_id), parse_address(address)
        except ValueError:
            self._refuse(name, "write id@host:port, such as 3000@127.0.0.1:9093")
