"""`make bench`."""

import sys

from benchmarks.local import main

if __name__ == "__main__":
    sys.exit(main())
