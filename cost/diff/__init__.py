"""What a change costs: snapshots of bills, their differences with causes, the roll-out."""
