"""Where the driver of a stream learns how large the record batches are that lie ahead."""
