from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trimtab.cli.options import (
    RefusedOption,
    add_client_options,
    add_options,
    read_client_file,
    read_client_options,
    read_pairs,
    read_partition_ids,
    read_properties_file,
)
from trimtab.kafka.errors import UsageError


def parse(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_client_options(parser, properties=["--producer-props"], files=["--producer.config"])
    return read_client_options(parser.parse_args(words), "producer")


def test_without_a_word_a_command_talks_to_the_default_port() -> None:
    assert parse() == {"bootstrap.servers": "127.0.0.1:9092"}


def test_several_properties_after_one_option_or_one_each_are_the_same() -> None:
    together = parse("--producer-props", "acks=1", "linger.ms=5")
    each = parse("-X", "acks=1", "-X", "linger.ms=5")
    assert together == each == {**parse(), "acks": "1", "linger.ms": "5"}


def test_the_option_beats_the_property_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nacks=0\nlinger.ms=7\n")
    options = parse("--producer.config", str(file), "-X", "bootstrap.servers=property:1", "acks=1")
    assert options == {"bootstrap.servers": "property:1", "acks": "1", "linger.ms": "7"}
    assert parse("-X", "bootstrap.servers=p:1", "--bootstrap-server", "o:1") == {
        "bootstrap.servers": "o:1"
    }


def test_a_value_may_hold_equals_signs() -> None:
    assert read_pairs(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("word", ["linger.ms", "=5"])
def test_a_word_that_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"is not NAME=VALUE"):
        read_pairs([word])


def test_a_properties_file_may_hold_comments_and_colons(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("# a comment\n! another\n\n a = 1 \nurl: host:9092\nb=x:y\n")
    assert read_properties_file(str(file)) == {"a": "1", "url": "host:9092", "b": "x:y"}


def test_a_properties_file_with_a_word_alone_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("a=1\nbroken\n")
    with pytest.raises(UsageError, match=r"line 2: 'broken'"):
        read_properties_file(str(file))


def test_a_missing_properties_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the options file .*/none: No such file"):
        read_properties_file(str(tmp_path / "none"))


def test_partition_ids() -> None:
    assert read_partition_ids("0,2, 5") == [0, 2, 5]
    with pytest.raises(UsageError, match="write numbers separated by commas"):
        read_partition_ids("0,x")


@pytest.mark.parametrize("words", [["--zookeeper", "localhost:2181"], ["--zookeeper"]])
def test_zookeeper_is_gone_and_the_error_says_what_to_use(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(*words)
    error = capsys.readouterr().err
    assert "argument --zookeeper: Kafka 4 removed ZooKeeper" in error
    assert "--bootstrap-server" in error.splitlines()[-1]


SPELLINGS = {
    "--json": "",
    "--topic TOPIC": "",
    "--id -i N": "",
    "--records N>0": "",
    "--timeout MS>0=5000": "how long",
    "--keys {text,hash}=text": "",
    "--state [STATE]": "",
    "--codec [CODEC=gzip]": "",
    "--config NAME=VALUE …": "",
    "--what-if TOPIC *": "",
    "--dry-run": "",
    "| --execute": "",
}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ([], "json", False),
        (["--json"], "json", True),
        (["--topic", "t"], "topic", "t"),
        (["-i", "-1"], "id", -1),
        (["--records", "3"], "records", 3),
        ([], "timeout", 5000),
        ([], "keys", "text"),
        ([], "state", None),
        (["--state"], "state", ""),
        (["--state", "Empty"], "state", "Empty"),
        (["--codec"], "codec", "gzip"),
        ([], "config", []),
        (["--config", "a=1", "b=2", "--config", "c=3"], "config", ["a=1", "b=2", "c=3"]),
        (["--what-if", "t", "--what-if", "u"], "what_if", ["t", "u"]),
    ],
)
def test_an_option_takes_what_its_usage_line_says(
    words: list[str], name: str, value: object
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, SPELLINGS)
    assert getattr(parser.parse_args(words), name) == value
    assert "how long (default: 5000)" in parser.format_help()


@pytest.mark.parametrize(
    "words",
    [["--records", "0"], ["--keys", "all"], ["--id", "one"], ["--dry-run", "--execute"], []],
)
def test_other_values_and_options_that_exclude_each_other_are_refused(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, SPELLINGS, required=() if words else ("--dry-run",))
    with pytest.raises(SystemExit):
        parser.parse_args(words)


def test_a_refused_option_is_not_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lost", action=RefusedOption, why="use another")
    assert "--lost" not in parser.format_help()
    assert parser.parse_args([]).lost is None


@pytest.mark.parametrize(
    ("client", "known"),
    [
        ("admin", {"request.timeout.ms": "7"}),
        ("producer", {"request.timeout.ms": "7", "acks": "1"}),
        ("consumer", {"request.timeout.ms": "7", "group.id": "g"}),
    ],
)
def test_one_file_serves_every_kind_of_client(
    tmp_path: Path, client: str, known: dict[str, str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\nrequest.timeout.ms=7\ngroup.id=g\n")
    assert read_client_file(str(file), client) == known


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("request.timeot.ms=1", "'request.timeot.ms': did you mean request.timeout.ms?"),
        ("xyzzy=1", "'xyzzy': remove it"),
    ],
)
def test_an_option_that_no_client_has_is_named_with_its_line(
    tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"acks=1\n{line}\n")
    with pytest.raises(UsageError) as error:
        read_client_file(str(file), "admin")
    assert str(error.value) == f"{file}, line 2: clients have no option {said}"


def test_binary_is_no_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(bytes(range(128, 256)))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_client_file(str(file), "admin")
