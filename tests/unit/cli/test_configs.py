"""`trimtab configs`: what it says of whom, what it changes, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab import Admin, Cluster
from trimtab.cli import main
from trimtab.cli.configs import read_added, write_entry
from trimtab.client.admin import ConfigEntry, ConfigSource, ConfigSynonym
from trimtab.kafka.errors import UsageError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1, 1, config={"segment.bytes": 9_000_000})
            admin.create_topic("u", 1, 1)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """`trimtab configs` with these words; exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["configs", *words, "--bootstrap-server", cluster.bootstrap_servers])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    "topic", [("--topic", "t"), ("--entity-type", "topics", "--entity-name", "t")]
)
def test_options_of_a_topic_are_set_shown_and_deleted(run: Run, topic: tuple[str, ...]) -> None:
    changes = ("--add-config", "retention.ms=60000,cleanup.policy=[compact,delete]")
    completed = (0, "Completed updating config for topic t.\n", "")
    assert run("--alter", *topic, *changes) == completed
    assert run("--describe", *topic)[1] == (
        "Dynamic configs for topic t are:\n"
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
        "cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}\n"
        "  retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000, "
        "DEFAULT_CONFIG:log.retention.hours=168}\n"
        "  segment.bytes=9000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
        "segment.bytes=9000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}\n"
    )
    deleted = ("--delete-config", "retention.ms, cleanup.policy")
    assert run("--alter", *topic, *deleted) == completed
    assert "retention.ms" not in run("--describe", *topic)[1]


def test_one_broker_and_all_brokers_are_told_apart(run: Run) -> None:
    of_all, of_one = ("--broker-defaults",), ("--broker", "1")
    assert run("--alter", *of_all, "--add-config", "max.connections=2000")[1] == (
        "Completed updating default config for brokers in the cluster.\n"
    )
    assert run("--alter", *of_one, "--add-config", "max.connections=1000")[1] == (
        "Completed updating config for broker 1.\n"
    )
    everybody = run("--describe", "--entity-type", "brokers")[1]
    assert everybody == (
        "Dynamic configs for broker 0 are:\n"
        "Dynamic configs for broker 1 are:\n"
        "  max.connections=1000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:"
        "max.connections=1000, DYNAMIC_DEFAULT_BROKER_CONFIG:max.connections=2000, "
        "DEFAULT_CONFIG:max.connections=2147483647}\n"
        "Default configs for brokers in the cluster are:\n"
        "  max.connections=2000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:"
        "max.connections=2000}\n"
    )
    default = ("--entity-type", "brokers", "--entity-default")
    assert everybody.endswith(run("--describe", *default)[1])
    run("--alter", *of_one, "--delete-config", "max.connections")
    run("--alter", *default, "--delete-config", "max.connections")
    assert run("--describe", *of_one)[1] == "Dynamic configs for broker 1 are:\n"


def test_all_shows_what_was_not_set_too(run: Run) -> None:
    lines = run("--describe", "--topic", "u", "--all")[1].splitlines()
    assert lines[0] == "All configs for topic u are:"
    assert (
        "  retention.ms=604800000 sensitive=false "
        "synonyms={DEFAULT_CONFIG:log.retention.hours=168}" in lines
    )


def test_options_are_described_as_json(run: Run) -> None:
    shown = run("--describe", "--entity-type", "topics", "--json")[1]
    t, u = (json.loads(line) for line in shown.splitlines())
    assert u == {"entityType": "topics", "entityName": "u", "configs": []}
    assert t["configs"] == [
        {
            "name": "segment.bytes",
            "value": "9000000",
            "source": "DYNAMIC_TOPIC_CONFIG",
            "sensitive": False,
            "readOnly": False,
            "synonyms": [
                {
                    "source": "DYNAMIC_TOPIC_CONFIG",
                    "name": "segment.bytes",
                    "value": "9000000",
                },
                {
                    "source": "DEFAULT_CONFIG",
                    "name": "log.segment.bytes",
                    "value": "1073741824",
                },
            ],
        }
    ]


def test_json_tells_names_of_what_changed_and_no_values(run: Run) -> None:
    words = ("--add-config", "retention.ms=77", "--delete-config", "flush.ms", "--json")
    assert json.loads(run("--alter", "--topic", "u", *words)[1]) == {
        "entityType": "topics",
        "entityName": "u",
        "set": ["retention.ms"],
        "deleted": ["flush.ms"],
    }
    assert run("--alter", "--topic", "u", "--delete-config", "retention.ms")[0] == 0


def test_options_come_from_a_file_too(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "topic.properties"
    file.write_text("# kept for long\nretention.ms = 88\ncleanup.policy=compact,delete\n")
    assert run("--alter", "--topic", "u", "--add-config-file", str(file))[0] == 0
    described = json.loads(run("--describe", "--topic", "u", "--json")[1])
    assert {each["name"]: each["value"] for each in described["configs"]} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "88",
    }
    deleted = ("--delete-config", "retention.ms", "--delete-config", "cleanup.policy")
    assert run("--alter", "--topic", "u", *deleted)[0] == 0


def test_who_does_not_exist_has_no_options_and_with_all_is_an_error(run: Run) -> None:
    for words, what in ((("--topic", "no"), "topic 'no'"), (("--broker", "7"), "broker '7'")):
        line = f"The {what} doesn't exist and doesn't have dynamic config.\n"
        assert run("--describe", *words) == (0, line, "")
        assert json.loads(run("--describe", *words, "--json")[1])["configs"] is None
        assert run("--describe", *words, "--all")[0] == 1


def test_a_stopped_broker_shows_what_is_set_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.alter_configs("broker", 1, {"leader.replication.throttled.rate": 1000})
        cluster.stop_broker(1)
        for which in (["--broker", "1"], ["--entity-type", "brokers"]):
            words = ["configs", "--describe", *which]
            code = main([*words, "--bootstrap-server", cluster.bootstrap_servers])
            out, err = capsys.readouterr()
            assert (code, err) == (0, "")
            assert (
                "Dynamic configs for broker 1 are:\n"
                "  leader.replication.throttled.rate=1000 sensitive=false synonyms="
                "{DYNAMIC_BROKER_CONFIG:leader.replication.throttled.rate=1000}\n"
            ) in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--topic t --add-config nonsense=1", "INVALID_CONFIG (40): Unknown topic config name"),
        ("--topic nowhere --add-config retention.ms=1", "there is no such topic"),
        ("--broker 7 --add-config max.connections=1", "No node with id 7 found"),
        ("--topic t", "--alter changes nothing"),
        ("--topic t --all --delete-config a", "--all goes with --describe"),
        ("--topic t --add-config a=1 --delete-config a", "option a is set and deleted at once"),
        ("--topic t --add-config a=1 --add-config-file x", "both given"),
        ("--topic t --add-config a=b=c", "--add-config 'a=b=c': write NAME=VALUE"),
        ("--topic t --add-config a:b=c", "option 'a:b': names have letters"),
        ("--entity-type topics --add-config a=b", "add --entity-name NAME"),
        ("--entity-type brokers --add-config a=b", "add --entity-name NAME"),
        ("--entity-type topics --entity-default --add-config a=b", "topics have no default"),
        ("--entity-type brokers --entity-name x --add-config a=b", "named by its number"),
    ],
)
def test_what_cannot_be_altered_is_said_in_one_line(run: Run, words: str, why: str) -> None:
    code, shown, error = run("--alter", *words.split())
    assert (code, shown) == (1, "")
    assert error.startswith("trimtab configs: ")
    assert why in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "whose options"),
        ("--entity-name x", "whose options"),
        ("--topic t --entity-name x", "use the long options or the short ones"),
        ("--topic t --broker 1", "name one topic, one broker"),
        ("--broker 1 --broker-defaults", "name one topic, one broker"),
        ("--entity-type brokers --entity-name 0 --entity-default", "name one topic, one broker"),
        ("--topic t --add-config a=b", "go with --alter"),
        ("--entity-type cats", "'cats': write topics or brokers"),
        ("--entity-type users", "does not support quotas of users or SCRAM credentials yet"),
        ("--entity-type clients", "does not support quotas of clients yet"),
        ("--entity-type ips", "does not support quotas of addresses yet"),
        ("--entity-type groups", "does not support consumer groups yet"),
        ("--entity-type client-metrics", "does not support subscriptions to client metrics"),
        (
            "--entity-type broker-loggers --entity-name 0",
            "does not support log levels of a running",
        ),
    ],
)
def test_what_cannot_be_described_is_said_in_one_line(run: Run, words: str, why: str) -> None:
    code, shown, error = run("--describe", *words.split())
    assert (code, shown) == (1, "")
    assert error.startswith("trimtab configs: ")
    assert why in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--user alice", "does not support quotas of users"),
        ("--client-defaults", "does not support quotas of clients"),
        ("--broker-logger 0", "does not support log levels"),
        ("--bootstrap-controller c:1", "name brokers with --bootstrap-server"),
    ],
)
def test_kafkas_other_options_say_why_they_cannot_be_had(
    run: Run, capsys: pytest.CaptureFixture[str], words: str, why: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("--describe", *words.split())
    assert why in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("a=b", {"a": "b"}),
        ("a=b,c=[x,y],d= e ", {"a": "b", "c": "x,y", "d": "e"}),
        ("a=[b=c]", {"a": "b=c"}),
        ("a=,b = 1", {"a": "", "b": "1"}),
        ("a=b,", {"a": "b"}),
    ],
)
def test_brackets_hold_values_together(text: str, added: dict[str, str]) -> None:
    assert read_added(text) == added


def test_a_part_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="--add-config 'b'"):
        read_added("a=1,b")


def test_a_secret_is_shown_as_null() -> None:
    synonym = ConfigSynonym("ssl.key.password", None, ConfigSource.STATIC_BROKER_CONFIG)
    secret = ConfigEntry(
        "ssl.key.password",
        None,
        ConfigSource.STATIC_BROKER_CONFIG,
        is_read_only=False,
        is_sensitive=True,
        type=None,
        documentation=None,
        synonyms=(synonym,),
    )
    assert write_entry(secret) == (
        "  ssl.key.password=null sensitive=true "
        "synonyms={STATIC_BROKER_CONFIG:ssl.key.password=null}"
    )
