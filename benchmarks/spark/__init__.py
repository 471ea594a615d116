"""The cost a row of the guarantees of `aiorecover.spark`, beside Spark without them.

Everything runs in one Spark of two cores, in a process of its own; contenders take turns in it, and the first turn of
each warms Java up and does not count. The rows written are counted after each turn.
"""
