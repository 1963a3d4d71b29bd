"""A local Spark session, with a Java of its own where none is installed."""

from trimtab.spark.session.local import local_session, start_session, stop_session

__all__ = ["local_session", "start_session", "stop_session"]
