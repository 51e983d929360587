"""`python -m polyfed`: the same as the command `polyfed`."""

import sys

from polyfed.cli.app import main

sys.exit(main())
