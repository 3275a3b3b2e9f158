"""The command `soperator`: parses, calls, prints."""
