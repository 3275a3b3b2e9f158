"""Commands of money."""
