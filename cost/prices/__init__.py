"""Dated prices of everything that is sold, with their sources: the newest reading wins."""
