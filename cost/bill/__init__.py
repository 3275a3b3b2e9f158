"""The bill of a stack: every line, unit cost and part of it, printed and explained."""
