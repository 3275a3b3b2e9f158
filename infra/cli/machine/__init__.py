"""Commands that prepare this machine, a project and the embedded cloud."""
