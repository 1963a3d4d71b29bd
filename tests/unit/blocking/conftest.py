"""Topics as in metadata, and a cluster that stores produced records."""

from tests.unit.client.conftest import kafka, make_view, world

__all__ = ["kafka", "make_view", "world"]
