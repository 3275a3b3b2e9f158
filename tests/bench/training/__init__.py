"""Trainers that are measured side by side, one module each; `contest` lets them step in turn."""
