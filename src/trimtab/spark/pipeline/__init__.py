"""Pipelines that are defined in TOML files."""
