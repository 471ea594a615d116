"""``python -m aiorecover``: the same as the command ``aiorecover``."""

from aiorecover.cli import main

if __name__ == "__main__":
    main()
