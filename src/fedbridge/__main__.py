"""``python -m fedbridge``."""

import sys

from fedbridge.cli import main

if __name__ == "__main__":
    sys.exit(main())
