"""A stack's life after `up`: one module or package a verb."""
