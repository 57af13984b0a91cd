"""``python -m mmapdict``: the command line."""

import sys

from mmapdict.cli import main

if __name__ == "__main__":
    sys.exit(main())
