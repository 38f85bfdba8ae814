"""``python -m rtlang``"""

from __future__ import annotations

import sys

from rtlang.cli.main import main

sys.exit(main())
