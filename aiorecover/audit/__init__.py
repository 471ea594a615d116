"""An audit without Spark: which records of some topics are missing, repeated, out of order, or in conflict.

`local` reads the topics with aiokafka (`reader`), sets a bit for each record id (`ids`), and judges what is missing by
the producers' manifests (`verdicts`). :mod:`aiorecover.spark` does the same on a cluster, and reads tables; both give
the same answer for the same topics.

Each 32,768 sequences of an epoch take 4 KiB of memory until all of them are found, 8 KiB while some of these are out of
order or repeated, and nearly nothing after that. `ids.MEMORY_MOST` bounds the whole.
"""
