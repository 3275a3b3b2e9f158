"""The plugin `nebius`: every Nebius resource over the official SDK."""
