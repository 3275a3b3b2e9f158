"""Runs from their records: list, compare, reproduce, share."""
