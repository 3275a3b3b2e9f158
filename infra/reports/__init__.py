"""What people keep: report, acceptance certificate, runs."""
