"""Acceptance: what a cluster must show before anybody pays for it, measured inside it."""
