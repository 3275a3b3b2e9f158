"""Dashboards, rules and their delivery for a stack with observability: spec and burn -> dicts.

Pure. Every metric that a panel or a rule names is in metrics.tsv with who exports it and a source.
"""
