"""The cluster's metadata: the controller's records, replayed into an image.

The controller decides by it and the brokers answer from it.

Tests of features: tests/unit/cluster/controller/test_features.py
"""
