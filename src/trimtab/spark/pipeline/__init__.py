"""Pipelines from files."""
