"""`python -m speculate`: the command line."""

import sys

from speculate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
