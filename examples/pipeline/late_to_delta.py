"""The stream of late.toml as a program, into a Delta table: `trimtab pipeline` writes no Delta.

export PYSPARK_SUBMIT_ARGS='--packages io.delta:delta-spark_4.2_2.13:4.4.0 pyspark-shell'
KAFKA=127.0.0.1:9092 OUT=/tmp/flights python late_to_delta.py
"""

from __future__ import annotations

import os

from trimtab.spark.session import local_session

SCHEMA = "carrier STRING, delay INT"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main() -> None:
    out = os.environ["OUT"]
    with local_session("late to Delta", config=DELTA) as spark:
        query = (
            spark.readStream.format("trimtab")
            .option("kafka.bootstrap.servers", os.environ["KAFKA"])
            .option("subscribe", "flights")
            .option("startingOffsets", "earliest")
            .option("maxBytesPerTrigger", "8m")
            .load()
            .selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS flight")
            .selectExpr("flight.*")
            .where("delay >= 15")
            .writeStream.format("delta")
            .partitionBy("carrier")
            .option("checkpointLocation", f"{out}/delta-checkpoint")
            .trigger(availableNow=True)
            .start(f"{out}/late-delta")
        )
        query.awaitTermination()
        table = spark.read.format("delta").load(f"{out}/late-delta")
        versions = spark.sql(f"DESCRIBE HISTORY delta.`{out}/late-delta`").count()
        print(f"{table.count()} late flights; {versions} versions of the table")


if __name__ == "__main__":
    main()
