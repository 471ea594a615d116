"""A crash model of `aiorecover.ring`: the package itself on a disk in memory, with a broker beside it."""
