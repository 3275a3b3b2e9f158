"""How tables, notes, charts and explanations look in each format, whatever they are about."""
