"""The embedded cloud: what stands here for Nebius, Kubernetes, Soperator and object storage."""
