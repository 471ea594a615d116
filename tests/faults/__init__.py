"""Real faults: full and failing disks, strangers among the files, clocks that jump, other processes."""
