"""report.html and its texts."""
