"""Options: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import pytest

from trimtab.config import (
    BOOLEAN,
    BROKER,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    TOPIC,
    Option,
    OptionTable,
    Password,
    Range,
    inherit,
    read,
    read_given,
    write,
)
from trimtab.errors import UsageError

TABLE = OptionTable(
    "lab",
    (
        Option("a.flag", BOOLEAN, False, ""),
        Option("a.number", INT, 5, "", Range(1, 10, (-1,))),
        Option("a.short", SHORT, 0, ""),
        Option("a.long", LONG, 0, ""),
        Option("a.ratio", DOUBLE, 0.5, "", Range(0, 1)),
        Option("a.word", STRING, "x", "", ("x", "y")),
        Option("a.list", LIST, (), "", ("x", "y")),
        Option("a.rack", STRING, None, ""),
    ),
)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("a.flag", True, True),
        ("a.flag", "TRUE", True),
        ("a_flag", "false", False),
        ("a.number", 7, 7),
        ("a_number", " 7 ", 7),
        ("a.number", -1, -1),
        ("a.long", "9223372036854775807", 2**63 - 1),
        ("a.ratio", 1, 1.0),
        ("a.ratio", "0.25", 0.25),
        ("a.word", "y", "y"),
        ("a.list", "x, y", ("x", "y")),
        ("a.list", ["y"], ("y",)),
        ("a.list", "", ()),
        ("a.rack", None, None),
    ],
)
def test_values_are_read_in_either_spelling_and_as_text(
    name: str, given: object, value: object
) -> None:
    read_value = read(TABLE, {name: given})[name.replace("_", ".")]
    assert read_value == value
    assert type(read_value) is type(value)


def test_the_rest_have_their_defaults() -> None:
    assert read(TABLE, {"a.number": 1}) == {
        **{option.name: option.default for option in TABLE},
        "a.number": 1,
    }
    assert read_given(TABLE, {"a_number": 1}) == {"a.number": 1}


@pytest.mark.parametrize(
    ("name", "given", "fix"),
    [
        ("a.flag", 1, "true or false"),
        ("a.flag", "yes", "true or false"),
        ("a.number", True, "whole number that fits 32 bits"),
        ("a.number", 1.0, "whole number"),
        ("a.number", "1_0", "whole number"),
        ("a.number", "x", "whole number"),
        ("a.number", 0, "between 1 and 10 or -1"),
        ("a.number", 11, "between 1 and 10 or -1"),
        ("a.short", 2**15, "16 bits"),
        ("a.long", 2**63, "64 bits"),
        ("a.ratio", "nan", "a number"),
        ("a.ratio", 1.5, "between 0 and 1"),
        ("a.word", "z", "one of x, y"),
        ("a.word", 1, "a string"),
        ("a.word", None, "a string"),
        ("a.list", "x,z", "one of x, y"),
        ("a.list", 5, "a list of strings"),
        ("a.list", [1], "a list of strings"),
    ],
)
def test_a_refusal_names_option_value_and_fix(name: str, given: object, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(TABLE, {name: given})
    message = str(refusal.value)
    assert message.startswith(f"lab {name}={given!r}: ")
    assert fix in message


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown lab option 'a_numbr': did you mean a\.number\?"):
        read(TABLE, {"a_numbr": 1})
    with pytest.raises(UsageError, match=r"unknown lab option 'zzz': known: a\.flag, a\.list"):
        read(TABLE, {"zzz": 1})


def test_both_spellings_of_one_option_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a\.number is given twice"):
        read(TABLE, {"a.number": 1, "a_number": 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (5, "5"), (0.5, "0.5"), (("x", "y"), "x,y"), (None, None)],
)
def test_values_are_written_as_kafka_writes_them(value: object, text: str | None) -> None:
    assert write(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [TOPIC, BROKER], ids=["topic", "broker"])
def test_every_default_fits_its_own_option(table: OptionTable) -> None:
    for option in table:
        assert option.check(option.default) == option.default
        assert option.check(write(option.default)) == option.default
        assert option.doc


def test_a_broker_without_options_gives_topics_the_topic_defaults() -> None:
    inherited = inherit(read(BROKER, {}))
    assert inherited == {option.name: option.default for option in TOPIC}


def test_topics_inherit_the_strongest_broker_option_in_their_unit() -> None:
    def retention(**given: int) -> object:
        return inherit(read(BROKER, given))["retention.ms"]

    assert retention(log_retention_hours=2) == 7_200_000
    assert retention(log_retention_hours=2, log_retention_minutes=3) == 180_000
    assert retention(log_retention_minutes=3, log_retention_ms=4) == 4
    assert retention(log_retention_hours=-1) == -1


def test_passwords_are_kept_from_sight() -> None:
    table = OptionTable("lab", (Option("a.secret", PASSWORD, None, ""),))
    secret = read(table, {"a.secret": " s3cret "})["a.secret"]
    assert secret == Password(" s3cret ")
    assert f"{secret} {secret!r} {[secret]}" == "[hidden] [hidden] [[hidden]]"
    assert write(secret) is None
    with pytest.raises(UsageError) as refusal:
        read(table, {"a.secret": 12345})
    assert str(refusal.value) == "lab a.secret=[hidden]: must be a string"


def test_a_class_is_a_callable() -> None:
    table = OptionTable("lab", (Option("a.class", CLASS, None, ""),))
    assert read(table, {"a.class": max})["a.class"] is max
    with pytest.raises(UsageError, match=r"lab a\.class='max': must be a callable"):
        read(table, {"a.class": "max"})


def test_what_has_no_meaning_here_is_refused_with_what_to_do() -> None:
    refused = {"a.codec": "use a.number", "a.family.": "there is no family"}
    table = OptionTable("lab", (Option("a.family.name", STRING, "", ""),), refused)
    for name in ("a.codec", "a_codec"):
        with pytest.raises(UsageError, match=r"lab option a\.codec is not for .*: use a\.number"):
            table.find(name)
    with pytest.raises(UsageError, match=r"a\.family\.size is not for .*: there is no family"):
        table.find("a.family.size")
    assert table.find("a.family.name").name == "a.family.name"
    with pytest.raises(UsageError, match="unknown lab option"):
        table.find("a.codecs")
