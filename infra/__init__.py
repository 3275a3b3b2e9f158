"""What acts from outside the cluster: components, providers, the command, the embedded cloud."""
