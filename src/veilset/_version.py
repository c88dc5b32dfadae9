"""The version of the package, alone in a file so that building never imports torch."""

__version__ = "0.2.0"
