"""What fuzzers are run on: arbitrary files and arbitrary frames, and what must hold whatever they hold."""
