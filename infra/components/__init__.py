"""One Pulumi component a file; `stack.py` puts them together."""
