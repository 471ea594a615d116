"""Processes that are killed, brokers that go away; every accepted record must be there."""
