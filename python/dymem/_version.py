"""The version, in one place: setup.py reads this text, the package imports it."""

__version__ = "0.1.0"
