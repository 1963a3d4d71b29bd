"""A partition's log on disk, in Kafka's formats, and the disk interface below it."""
