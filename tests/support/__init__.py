"""Shared by the tests: a real Kafka that can be killed, and a checker outside the library.

`broker` chooses and runs a cluster, `oracle` reads topics back and judges what arrived, `jars` fetches what
the cluster consists of. None of these imports aiorecover: a checker that shared code with what it checks
would share its mistakes.
"""
