"""`python -m trimtab.sim`: see `trimtab.sim.runs`."""

import sys

from trimtab.sim.runs import main

if __name__ == "__main__":
    sys.exit(main())
