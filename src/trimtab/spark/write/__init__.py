"""The sink: rows into topics, at least once or exactly once."""
