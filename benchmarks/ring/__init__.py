"""The ring by itself (`aiorecover.ring`): what storing and opening cost without Kafka and without a producer.

    append.py     ns a record, and latency beside an empty coroutine
    commit.py     records that wait for a flush, against the first core
    opening.py    a ring with a large backlog, in the same boot and after another one
    memory.py     anonymous and resident memory over idle

A record has 160 bytes of noise, one of six keys, and the header with its id. `store.Store` stands in for a producer: it
looks up lanes by key, and settles batches as delivery would. It checks nothing and serialises nothing, so what is
measured here is what `publish` cannot go below.
"""
