"""Inputs from public bug reports, one file a subject: each test's name says what is right."""
