"""`python -m lab.reliability`: see `lab.reliability.runs`."""

import sys

from lab.reliability.runs import main

if __name__ == "__main__":
    sys.exit(main())
