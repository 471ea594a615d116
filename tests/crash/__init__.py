"""Processes that are killed, brokers that go away, faults that are planted: is every accepted record still there?"""
