"""The contract between our plugins and the engine."""
