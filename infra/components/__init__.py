"""The Pulumi components; `stack.py` puts them together."""
