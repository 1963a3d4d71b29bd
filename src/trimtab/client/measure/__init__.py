"""Measures the load of any Kafka cluster from outside, without an agent in its brokers.

sample      one round of polls of all brokers, by the requests in `polls`
rates       bytes/s and records/s of each partition, from several samples
lag         how far groups lag, and when they will have caught up
followers   how far followers are behind, and which broker is to blame
probe       how long each broker takes to store a small record
slow        which brokers are slow, from probes and one other sign
limits      the limits of KIP-578, and the replicas that count for them
"""
