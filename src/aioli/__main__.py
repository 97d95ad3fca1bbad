"""`python -m aioli`."""

import sys

from aioli.cli import main

sys.exit(main())
