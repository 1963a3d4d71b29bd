"""Moves leaders and replicas of any Kafka cluster as a plan says, step by step.

executor    carries out what `balance/steps.py` decides, until the replicas are as wanted
observer    asks the cluster for what the decisions need

Tests of observer: test_executor.py
"""

from trimtab.client.moves.executor import MoveExecutor, MoveReport
from trimtab.client.moves.observer import ProbeReading

__all__ = ["MoveExecutor", "MoveReport", "ProbeReading"]
