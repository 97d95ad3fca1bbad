"""`python -m aioli.cli`."""

import sys

from aioli.cli import main

sys.exit(main())
