"""`python -m pike_hpc` is `pike-hpc`; jobs start this way, from the code that a run carries."""

import sys

from pike_hpc.cli import main

if __name__ == "__main__":
    sys.exit(main())
