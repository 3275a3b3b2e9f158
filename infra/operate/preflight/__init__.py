"""Read-only questions to the cloud before anything is declared."""
