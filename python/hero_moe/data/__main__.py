"""`python -m hero_moe.data`."""

import sys

from hero_moe.data.commands import main

if __name__ == "__main__":
    sys.exit(main())
