"""``python -m aiolock``: the command line."""

import sys

from aiolock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
