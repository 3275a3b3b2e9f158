"""What `soperator init` sets up and writes."""
