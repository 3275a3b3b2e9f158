"""What the Pulumi engine calls: our resource plugins."""
