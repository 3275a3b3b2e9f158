"""Rules across fields, one subject per file; check.py runs them."""
