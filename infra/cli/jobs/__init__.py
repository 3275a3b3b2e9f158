"""Commands of jobs and their runs."""
