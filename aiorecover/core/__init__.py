"""The producer over the ring and its delivery, beside the first core until it takes its place."""
