"""The plugin `soperator`: keys, custom resources, uploads, the wait for pods, teardown."""
