"""The tests; what several of them hold."""

SHIPPED = ("h100-prod", "h200-elastic", "l40s-dev", "local")
"""Names of the stack files of the project; a person's own lie beside them in stacks/."""
