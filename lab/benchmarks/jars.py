"""Apache Kafka, its clients, Kafka Streams and Spark's connector: jars from Maven, in a cache.

`TRIMTAB_KAFKA_JARS` names a directory with Apache Kafka's jars (broker, tools and clients) to use
instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.report import progress
from trimtab.spark.session.cache import cache_directory

KAFKA_VERSION = "4.3.0"
NEWEST_CLIENT = "4.4.0"
"""The first Java producer with KIP-1123."""
OLD_CLIENT = "3.2.3"
"""The last release line of Java producers whose default partitioner is KIP-480's."""
CONNECTOR_VERSION = "4.2.0"


class RivalMissing(Exception):
    """A rival is not available on this machine; the message has the reason."""


class Artifact(NamedTuple):
    """A Maven artifact; `alone` leaves out its dependencies."""

    group: str
    name: str
    version: str
    alone: bool = False

    def write_dependency(self) -> str:
        every = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>"
            f"{f'<exclusions>{every}</exclusions>' if self.alone else ''}</dependency>"
        )


KAFKA = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
STREAMS = (
    # With RocksDB for its state stores.
    Artifact("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
CLIENTS = {
    NEWEST_CLIENT: (
        Artifact("org.apache.kafka", "kafka-clients", NEWEST_CLIENT),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    # With its own tools: those of KAFKA_VERSION need classes that this client lacks.
    OLD_CLIENT: (
        Artifact("org.apache.kafka", "kafka-tools", OLD_CLIENT),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
}
# The versions that Spark 4.2.0 depends on; without its own token provider, which some repositories
# lack and which only delegation tokens need.
CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION, alone=True),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.0", alone=True),
)


def find_kafka_jars() -> Path | None:
    """The directory of Apache Kafka's jars; None if they were not fetched."""
    given = os.environ.get("TRIMTAB_KAFKA_JARS")
    directory = Path(given) if given else _kafka_directory()
    return directory if any(directory.glob("kafka-clients-*.jar")) else None


def kafka_jars() -> Path:
    """The directory of Apache Kafka's jars; fetches them if they are missing.

    Raises:
        RivalMissing: there is no Java or no Maven, or Maven could not fetch them.
    """
    return find_kafka_jars() or _fetch(_kafka_directory(), KAFKA)


def find_client_jars(version: str = NEWEST_CLIENT) -> Path | None:
    """The directory of one of `CLIENTS`; None if it was not fetched."""
    directory = _client_directory(version)
    return directory if any(directory.glob(f"kafka-clients-{version}.jar")) else None


def client_jars(version: str = NEWEST_CLIENT) -> Path:
    """The directory of one of `CLIENTS` with its dependencies; fetches them if they are missing.

    To run the newest with Apache Kafka's tools put it before `kafka_jars()` on the class path.

    Raises:
        RivalMissing: there is no Maven, or it could not fetch them.
    """
    return find_client_jars(version) or _fetch(_client_directory(version), CLIENTS[version])


def find_streams_jars() -> Path | None:
    """The directory of Kafka Streams with its dependencies; None if it was not fetched.

    `TRIMTAB_KAFKA_JARS` may have it, as the libs of a release of Apache Kafka do.
    """
    given = os.environ.get("TRIMTAB_KAFKA_JARS")
    directories = (*([Path(given)] if given else []), _streams_directory())
    return next((each for each in directories if any(each.glob("kafka-streams-[0-9]*.jar"))), None)


def streams_jars() -> Path:
    """The directory of Kafka Streams with its dependencies; fetches them if they are missing.

    Raises:
        RivalMissing: there is no Maven, or it could not fetch them.
    """
    return find_streams_jars() or _fetch(_streams_directory(), STREAMS)


def connector_jars() -> Path:
    """The directory of Spark's Kafka connector; fetches it if it is missing.

    Raises:
        RivalMissing: there is no Maven, or it could not fetch it.
    """
    directory = cache_directory() / f"spark-sql-kafka-{CONNECTOR_VERSION}"
    if any(directory.glob("spark-sql-kafka-*.jar")):
        return directory
    return _fetch(directory, CONNECTOR)


def connector_config() -> tuple[dict[str, str], str]:
    """Spark's options for its Kafka connector; without it no options, and the reason."""
    try:
        jars = sorted(map(str, connector_jars().glob("*.jar")))
    except RivalMissing as missing:
        return {}, str(missing)
    return {"spark.jars": ",".join(jars)}, ""


def find_java() -> str:
    """The path of `java`, to run Apache Kafka with.

    Raises:
        RivalMissing: there is no java on PATH.
    """
    java = shutil.which("java")
    if java is None:
        raise RivalMissing("no java on PATH; Apache Kafka needs Java 17 or later")
    return java


def java_command(heap: str, level: str = "error") -> list[str]:
    """The beginning of a command that runs Apache Kafka's code: java and its flags.

    Like Apache Kafka's scripts it takes flags from KAFKA_JVM_PERFORMANCE_OPTS (environment).

    Args:
        heap: its size, as java writes it (`128m`).
        level: the least of what it logs.

    Raises:
        RivalMissing: there is no java on PATH.
    """
    flags = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split()
    logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
    return [find_java(), f"-Xmx{heap}", *flags, logging]


def _kafka_directory() -> Path:
    return cache_directory() / f"kafka-{KAFKA_VERSION}"


def _client_directory(version: str) -> Path:
    return cache_directory() / f"kafka-clients-{version}"


def _streams_directory() -> Path:
    return cache_directory() / f"kafka-streams-{KAFKA_VERSION}"


def _fetch(directory: Path, artifacts: tuple[Artifact, ...]) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise RivalMissing("no mvn on PATH to fetch it with; install Maven")
    progress(f"fetching {artifacts[0].name} {artifacts[0].version} with Maven")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        pom = Path(work) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>trimtab</groupId><artifactId>rivals</artifactId><version>1</version>"
            f"<dependencies>{''.join(a.write_dependency() for a in artifacts)}</dependencies>"
            "</project>",
            encoding="utf-8",
        )
        jars = Path(work) / "jars"
        done = subprocess.run(
            [
                *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(pom)),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                "-DexcludeArtifactIds=slf4j-reload4j",
                f"-DoutputDirectory={jars}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason")
            raise RivalMissing(f"Maven could not fetch {artifacts[0].name}: {said[:300]}")
        # Rename at the end, so that a partly filled directory is never used.
        shutil.rmtree(directory, ignore_errors=True)
        jars.rename(directory)
    return directory


if __name__ == "__main__":
    try:
        print(kafka_jars())
        for version in CLIENTS:
            print(client_jars(version))
        print(streams_jars())
    except RivalMissing as missing:
        raise SystemExit(f"Apache Kafka is not available: {missing}") from None
