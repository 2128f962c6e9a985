"""Run the command line with ``python -m vestige.cli``."""

from vestige.cli import main

main()
