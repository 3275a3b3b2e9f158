"""A stack on upstream's real charts and operator."""
