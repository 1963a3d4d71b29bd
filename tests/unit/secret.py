"""The secret of the clusters in unit tests."""

from __future__ import annotations

from trimtab.cluster.server.cluster_secret import ClusterSecret

SECRET = ClusterSecret("secret" * 8)
