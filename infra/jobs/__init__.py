"""A job's life: submit, follow, pull, serve, search, ledger."""
