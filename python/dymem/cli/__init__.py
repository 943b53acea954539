"""The command line: one file a command, app.py puts them together. Nothing here is imported by the library."""
