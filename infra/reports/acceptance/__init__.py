"""Acceptance: the certificate, its pages and comparisons."""
