"""Delivery: batches go from the ring to Kafka as they lie there, in order, each once where Kafka allows it."""
