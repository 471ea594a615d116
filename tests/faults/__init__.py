"""Real faults of a machine: disks that are full or fail, clocks that jump, signals."""
