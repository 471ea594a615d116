"""Processes that are killed, brokers that go away, faults that are planted; every accepted record must be there."""
