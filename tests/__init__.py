"""The tests of aiorecover, and in `tests.support` what they stand on."""
