"""Commands of a cluster's life."""
