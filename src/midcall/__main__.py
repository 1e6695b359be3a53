"""`python -m midcall`: the same as the command `midcall`."""

from midcall.cli import main

raise SystemExit(main())
