"""The folder `examples`, run as its README says. The pipeline: tests/spark/test_example.py"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.benchmarks.apache_kafka import run_java
from tests.kafka import needs_kafka
from trimtab.cli import make_parser

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SECONDS = 300
LONGEST = 90
NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:asyncio")  # which users need not have


@pytest.mark.parametrize(("folder", "tests"), [("service", 4), ("app_tests", 5)])
def test_the_tests_of_an_example_pass_where_it_is_copied_to(
    folder: str, tests: int, tmp_path: Path
) -> None:
    copy = shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *NO_PLUGINS, "-W", "error"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert re.search(rf"= {tests} passed in ", done.stdout), done.stdout + done.stderr


def test_uvicorn_runs_the_service() -> None:
    """Kafka is not there, and so a request is told to come again."""
    program = """
import socket, threading, urllib.error, urllib.request, uvicorn
from events import make_app
with socket.create_server(("127.0.0.1", 0)) as own:
    app = make_app("127.0.0.1:1")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = threading.Thread(target=server.run, args=([own],))
    serving.start()
    try:
        urllib.request.urlopen("http://127.0.0.1:%d/health" % own.getsockname()[1], timeout=60)
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Retry-After"])
    server.should_exit = True
    serving.join(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=EXAMPLES / "service",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout == "503 1\n", done.stderr


# Compose


def read_services() -> dict[str, Any]:
    text = (EXAMPLES / "compose/compose.yaml").read_text(encoding="utf-8")
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services


def commands() -> list[list[str]]:
    """The command lines of the README and of compose.yaml that begin with trimtab."""
    of_compose = [each["entrypoint"] for each in read_services().values() if "entrypoint" in each]
    lines = re.findall(r"(?m)^    (?:docker compose exec \w+ )?(trimtab .*)$", README)
    return [shlex.split(line)[1:] for line in [*of_compose, *lines]]


def test_the_commands_are_found() -> None:
    names = ["dashboard", "producer-perf", "topics", "pipeline", "pipeline", "top", "what-if"]
    assert [words[0] for words in commands()] == names


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_trimtab_takes_a_command_of_the_examples(words: list[str]) -> None:
    make_parser(words[0]).parse_args(words[1:])


def test_services_name_each_other_by_names_and_ports_that_exist() -> None:
    services = read_services()
    listening = set()
    for name, service in services.items():
        options = service.get("environment", {})
        for listener in options.get("KAFKA_LISTENERS", "").split(","):
            listening.add(f"{name}:{listener.rpartition(':')[2]}")
        assert {*service.get("depends_on", {})} <= {*services}
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to other machines"
    named = re.findall(r"kafka-\d:\d+", str(services) + README)
    assert len(named) > 10
    assert {*named} <= listening


@needs_kafka
@pytest.mark.parametrize("broker", ["kafka-1", "kafka-2", "kafka-3"])
def test_apache_kafka_takes_the_options_of_its_brokers(broker: str, tmp_path: Path) -> None:
    """The image makes options of environment variables in this way."""
    environment = read_services()[broker]["environment"]
    options = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_")
    }
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{k}={v}\n" for k, v in options.items()) + f"log.dirs={tmp_path}/log")
    printed = run_java(
        *("kafka.tools.StorageTool", "format"),
        *("--cluster-id", environment["CLUSTER_ID"], "--config", str(file)),
    )
    assert "Formatting" in printed


def test_no_example_is_long_and_each_is_in_the_readme() -> None:
    files = [each for each in EXAMPLES.rglob("*") if each.suffix in (".py", ".toml", ".yaml")]
    assert len(files) == 8
    lengths = {each.name: len(each.read_text(encoding="utf-8").splitlines()) for each in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
    folders = {each.relative_to(EXAMPLES).parts[0] for each in files}
    assert {*re.findall(r"(?m)^## (\w+)$", README)} == folders
