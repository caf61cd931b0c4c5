# SPDX-License-Identifier: MIT
from .cli import main

raise SystemExit(main())
