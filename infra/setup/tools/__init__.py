"""Installs what `make demo` and `make test` need."""
