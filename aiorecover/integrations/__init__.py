"""Connect a producer with web frameworks, metrics and settings. Each module needs its extra; all use public names.

=================  ==========================================================================================
`fastapi`          `lifespan`, `ProducerDep`, `exception_handlers`, `probes`, a router for dead letters
`starlette`        the same without dependencies, for a plain Starlette
`litestar`         the same for Litestar
`faststream`       `KafkaBroker`: FastStream's, with a ring between `publish` and Kafka
`prometheus`       `watch`: the statistics as metrics that are read when they are scraped (extra ``metrics``)
`opentelemetry`    `watch`: the same metrics as observable instruments (extra ``metrics``)
`tracing`          `traced`, `delivery_spans`: W3C context in the headers, a span when a record is in Kafka
`serializers`      `RegistrySerializer`: Avro, Protobuf and JSON Schema by confluent-kafka's schema registry
`cloudevents`      `binary`: CloudEvents in Kafka's binary mode
`forwarding`       `forwarded`: the headers of a record that is published again (no extra)
`settings`         `ProducerSettings`: the options from environment variables, ``.env`` and TOML
=================  ==========================================================================================

docs/services.md and docs/integrations.md show each at work.
"""
