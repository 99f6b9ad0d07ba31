"""``python -m plga``, which is how launchers start the command line in many processes."""

from plga.cli.main import main

main()
