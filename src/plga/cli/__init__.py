"""The command line: one file a command, no mathematics here, and nothing heavy imported before a command runs."""
