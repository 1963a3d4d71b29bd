"""`trimtab skew`: every kind of source, and exit codes that CI can use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from trimtab import Admin, Cluster, Producer, key_skew
from trimtab.cli import main

COUNTRIES = ["us"] * 60 + ["de", "fr", "gb", "it", "es"] * 8


@pytest.fixture(scope="module")
def orders() -> pa.Table:
    random = Random(1)
    rows = 40_000
    return pa.table(
        {
            "country": random.choices(COUNTRIES, k=rows),
            "user": [f"u{random.getrandbits(40)}" for _ in range(rows)],
            "number": [random.getrandbits(31) for _ in range(rows)],
            "raw": [random.randbytes(8) for _ in range(rows)],
            "size": [random.randrange(100, 300) for _ in range(rows)],
            "price": [1.5] * rows,
        }
    )


@pytest.fixture(scope="module")
def files(orders: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("orders")
    made = {name: folder / f"orders.{name}" for name in ("parquet", "csv", "jsonl")}
    pyarrow.parquet.write_table(orders, made["parquet"], row_group_size=9000)
    texts = orders.drop_columns(["raw"])
    pyarrow.csv.write_csv(texts, made["csv"])
    made["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in texts.to_pylist()))
    made["table"] = folder / "table"
    pyarrow.parquet.write_to_dataset(texts, made["table"], partition_cols=["country"])
    return made


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["skew", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl", "table"])
def test_every_kind_of_file_is_read(
    form: str, files: dict[str, Path], orders: pa.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code, even = shown(capsys, files[form], "--key", "user", "--partitions", "12")
    right = key_skew(orders["user"].to_pylist(), partitions=12, tried=[3, 6, 24, 48])
    assert (code, even["evenness"]) == (0, "even")
    assert even["records"] == len(orders)
    assert even["ratios"] == {str(number): ratio for number, ratio in right.ratios.items()}
    code, uneven = shown(capsys, files[form], "--key", "country", "--partitions", "48")
    assert (code, uneven["evenness"]) == (1, "uneven")
    assert uneven["blamed"][0]["key"] == "us"
    assert uneven["most_partitions"] == 2
    others = uneven["other_keys"]
    assert others["user"] < 1.3
    assert others["country,user"] < 1.3
    assert "price" not in others  # nobody keys by a fraction


def test_a_text_names_the_keys_to_blame_and_what_other_keys_would_do(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["skew", str(files["parquet"]), "--key", "country", "--partitions", "48"]) == 1
    text = capsys.readouterr().out
    assert "uneven: 40,000 records with keys on 48 partitions" in text
    assert "to blame in partition" in text
    assert "'us' (" in text
    assert "with other keys" in text
    assert "  user: 1." in text


def test_few_records_neither_pass_nor_fail(
    tmp_path: Path, orders: pa.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.parquet"
    pyarrow.parquet.write_table(orders.slice(0, 500), few)
    code, unclear = shown(capsys, few, "--key", "user", "--partitions", "48")
    assert (code, unclear["evenness"]) == (3, "unclear")
    assert unclear["enough"] > 5000


def test_numbers_as_kafkas_serializers_write_them(
    files: dict[str, Path], orders: pa.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = orders["number"].to_pylist()
    for form, size in (("int", 4), ("long", 8)):
        arguments = ["--key", "number", "--partitions", "12", "--key-format", form]
        _, found = shown(capsys, files["parquet"], *arguments)
        right = key_skew([number.to_bytes(size, "big") for number in numbers], partitions=12)
        assert found["ratio"] == right.ratio
    _, found = shown(capsys, files["parquet"], "--key", "number", "--partitions", "12")
    assert found["ratio"] == key_skew(map(str, numbers), partitions=12).ratio
    _, found = shown(capsys, files["parquet"], "--key", "raw", "--partitions", "12")
    assert found["ratio"] == key_skew(orders["raw"].to_pylist(), partitions=12).ratio


def test_weights_partitioners_and_joined_columns(
    files: dict[str, Path], orders: pa.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    users, sizes = orders["user"].to_pylist(), orders["size"].to_pylist()
    file = files["parquet"]
    _, found = shown(capsys, file, "--key", "user", "--partitions", "12", "--weight", "size")
    assert found["ratio"] == key_skew(users, partitions=12, weights=sizes).ratio
    _, found = shown(
        capsys, file, "--key", "user", "--partitions", "12", "--partitioner", "consistent"
    )
    assert found["ratio"] == key_skew(users, partitions=12, partitioner="consistent").ratio
    _, found = shown(capsys, file, "--key", "user,country", "--partitions", "12", "--also", "5")
    joined = [
        f"{user}|{country}"
        for user, country in zip(users, orders["country"].to_pylist(), strict=True)
    ]
    right = key_skew(joined, partitions=12, tried=[5])
    assert found["ratios"] == {"5": right.ratios[5], "12": right.ratio}
    _, found = shown(
        capsys, file, "--key", "user", "--partitions", "12", "--partitioner", f"{__name__}:last"
    )
    assert (found["partition"], found["ratio"]) == (11, 12.0)


def last(_: bytes, partitions: int) -> int:
    return partitions - 1


def test_nulls_are_records_without_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nulls.parquet"
    table = pa.table({"a": ["x", None, "y", None], "n": pa.array([1, None, 3, None], pa.int32())})
    pyarrow.parquet.write_table(table, file)
    for arguments in (["--key", "a"], ["--key", "n", "--key-format", "int"], ["--key", "a,n"]):
        _, found = shown(capsys, file, *arguments, "--partitions", "2")
        assert (found["records"], found["without_key"]) == (2, 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def test_a_topic_is_read_and_fields_of_its_values_are_tried(
    cluster: Cluster, orders: pa.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = cluster.bootstrap_servers
    rows = orders.select(["country", "user"]).slice(0, 6000).to_pylist()
    with Admin(servers) as admin, Producer(servers, linger_ms=50) as producer:
        admin.create_topic("orders", partitions=3)
        for row in rows:
            producer.send("orders", json.dumps(row).encode(), row["country"].encode())
    code, found = shown(capsys, "orders", "--bootstrap-server", servers)
    assert (code, found["evenness"], found["records"]) == (1, "uneven", 6000)
    assert found["partitions"] == 3
    assert found["other_keys"]["user"] < 1.3
    code, found = shown(capsys, "orders", "--bootstrap-server", servers, "--key", "user")
    assert found["ratio"] == key_skew([row["user"] for row in rows], partitions=3).ratio
    _, found = shown(
        capsys, "orders", "--bootstrap-server", servers, "--max-records", "600", "--weight", "bytes"
    )
    assert 597 <= found["records"] <= 603
    assert main(["skew", "orders", "--bootstrap-server", servers, "--key", "nix"]) == 1
    assert "values have no field nix; they have country, user" in capsys.readouterr().err


def test_fields_that_some_values_lack_and_keys_that_are_no_text(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partitions arrive in batches of their own, so that some batches lack a field."""
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic("sparse", partitions=3)
        for number in range(900):
            value = {"user": f"u{number}"} if number % 3 == 0 else {"place": number}
            text = None if number % 3 == 2 else json.dumps(value).encode()
            producer.send("sparse", text, b"\xff\xfe", partition=number % 3)
    code, found = shown(capsys, "sparse", "--bootstrap-server", servers)
    assert (code, found["blamed"][0]["key"]) == (1, "0xfffe")
    assert not any("," in key for key in found["other_keys"])  # bytes are not joined with text
    _, found = shown(capsys, "sparse", "--bootstrap-server", servers, "--key", "user")
    assert (found["records"], found["without_key"]) == (300, 600)


def test_keys_are_themselves_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["it's", "'quoted'", "back\\slash", "0xff"]
    file = tmp_path / "quotes.parquet"
    pyarrow.parquet.write_table(pa.table({"key": keys}), file)
    _, found = shown(capsys, file, "--key", "key", "--partitions", "2")
    assert sorted(each["key"] for each in found["heaviest"]) == sorted(keys)


def test_a_topic_without_records_or_json(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic("empty")
        admin.create_topic("plain", partitions=2)
        for _ in range(100):
            producer.send("plain", b"no JSON", b"one key")
    assert main(["skew", "empty", "--bootstrap-server", servers]) == 1
    assert "none of 0 records has a key" in capsys.readouterr().err
    code, found = shown(capsys, "plain", "--bootstrap-server", servers)
    assert (code, found["ratio"], found["other_keys"]) == (1, 2.0, {})
    assert main(["skew", "plain", "--bootstrap-server", servers, "--key", "user"]) == 1
    assert "there is no column user: values are not JSON" in capsys.readouterr().err
    assert main(["skew", "nowhere", "--bootstrap-server", servers]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{csv}", "--key", "nix", "--partitions", "3"], "no column nix; it has country, user"),
        (["{csv}", "--partitions", "3"], "--key is missing: which column? There are country"),
        (["{csv}", "--key", "user"], "--partitions is missing"),
        (["nix.csv", "--key", "user"], "nix.csv: there is no such file"),
        (["{csv}", "--key", "user", "--partitions", "3", "--weight", "user"], "cannot be a weight"),
        (
            ["{csv}", "--key", "user", "--partitions", "3", "--key-format", "int"],
            "cannot be a key of --key-format int",
        ),
        (
            ["{csv}", "--key", "user,country", "--partitions", "3", "--key-format", "int"],
            "--key-format int is for a key of one column",
        ),
        (["{csv}", "--key", "user", "--partitions", "3", "--worst", "0.5"], "worst=0.5"),
        (["{csv}", "--key", "user", "--partitions", "3", "--partitioner", "nix:a"], "nix:a"),
        (["{csv}", "--key", "user", "--partitions", "3", "--partitioner", "nix"], "is not known"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: list[str],
    message: str,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [each.format(csv=files["csv"]) for each in arguments]
    assert main(["skew", *given]) == 1
    assert message in capsys.readouterr().err


def test_a_damaged_file_and_one_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, other = tmp_path / "a.parquet", tmp_path / "a.txt"
    damaged.write_bytes(b"PAR1 and no more")
    other.write_text("a")
    for file, message in ((damaged, "cannot be read as parquet"), (other, "name it *.parquet")):
        assert main(["skew", str(file), "--key", "a", "--partitions", "2"]) == 1
        assert message in capsys.readouterr().err


def test_keys_are_taken_as_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not as the numbers and times that they look like."""
    codes = [f"{number:05d}" for number in range(300)]
    times = [f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}" for number in range(300)]
    rows = list(zip(codes, times, strict=True))
    table, lines = tmp_path / "codes.csv", tmp_path / "codes.jsonl"
    table.write_text("code,at\n" + "".join(f"{code},{at}\n" for code, at in rows))
    lines.write_text("".join(f'{{"code":"{code}","at":"{at}"}}\n' for code, at in rows))
    for file in (table, lines):
        for key, written in (("code", codes), ("at", times)):
            _, found = shown(capsys, file, "--key", key, "--partitions", "7")
            assert found["ratio"] == key_skew(written, partitions=7).ratio
            assert found["heaviest"][0]["key"] in written
