"""A stack's life after `up`: one package a verb."""
