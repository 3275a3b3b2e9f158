"""Which hardware to take: presets for a demand, alternatives to a stack, limits that it keeps."""
