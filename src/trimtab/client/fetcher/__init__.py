"""Fetches records into a consumer's buffer within KIP-74's limits, and looks up offsets.

Tests of epochs, offsets, reader: test_fetcher.py
"""
