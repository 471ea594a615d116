"""The write-ahead log: what it stores is found again, in order, whatever dies; and nothing else is ever found."""
