"""`make bench`."""

import sys

from tests.bench.local import main

if __name__ == "__main__":
    sys.exit(main())
