"""`python -m speculate.cli`."""

import sys

from speculate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
