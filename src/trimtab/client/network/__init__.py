"""Connections to brokers, who they are, and what they say of the cluster."""
