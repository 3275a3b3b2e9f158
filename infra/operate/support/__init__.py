"""What a support case is given, without secrets."""
