"""The steps of `make demo`."""
