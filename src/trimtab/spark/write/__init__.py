"""The sink: writes rows into topics, at least once or exactly once."""
