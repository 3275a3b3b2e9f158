"""Prepares a machine and a project."""
