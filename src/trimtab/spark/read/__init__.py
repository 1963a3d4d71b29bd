"""Reading ranges of offsets into Arrow, and the batch reader."""
