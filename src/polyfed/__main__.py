"""`python -m polyfed` is the command."""

import sys

from polyfed.cli.app import main

sys.exit(main())
