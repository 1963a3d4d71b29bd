"""A partition's log on disk, in Kafka's formats, and the seam to the disk below it."""
