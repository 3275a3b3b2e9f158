"""What a stack's machines, disks and services cost: lines, totals and hourly rates."""
