"""The cluster: brokers and their controller, and `Cluster`, which runs them in this process.

config/       the options of brokers, topics and groups, and which value is in force
server/       what all nodes share: listen, answer in order, ask other nodes
storage/      a partition's log in Kafka's formats, and the disk's interface
metadata/     the controller's records, replayed into an image
coordinator/  what groups and transactions decide
broker/       from a producer's batches to the logs, and back to consumers
controller/   decides where replicas are and who leads them
disk/         the disk's interface on real files
processes/    a process for each node
embedded.py   all nodes inside this process
"""
