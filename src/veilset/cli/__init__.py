"""The command line: one file per command, drawn with rich, and nothing heavy loaded before it is needed."""
