"""`python -m augury` is the command line."""

from augury.cli import main

raise SystemExit(main())
