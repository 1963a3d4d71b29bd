"""A local Spark session, which brings its own Java if none is installed."""

from trimtab.spark.session.local import local_session, start_session, stop_session

__all__ = ["local_session", "start_session", "stop_session"]
