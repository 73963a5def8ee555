"""``python -m fedbridge``."""

import sys

from fedbridge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
