"""One client for each outside system: SSH and Slurm, Kubernetes."""
