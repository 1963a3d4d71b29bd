"""Check an expression by which a consumer group subscribes to topics (`--validate-regex`)."""

from __future__ import annotations

import argparse
import json

from trimtab.coordinator.topic_pattern import PatternRefused, TopicPattern


def validate_regex(arguments: argparse.Namespace) -> int:
    """The exit code is 0 for an invalid expression too, as that of Kafka's tool."""
    regex, reason = arguments.validate_regex, None
    try:
        TopicPattern(regex)
    except PatternRefused as refused:
        reason = str(refused)
    if arguments.json:
        print(json.dumps({"regex": regex, "valid": reason is None, "reason": reason}))
    else:
        verdict = "valid" if reason is None else f"invalid: {reason}"
        print(f"The regular expression `{regex}` is {verdict}.")
    return 0
