"""What jobs cost: forecasts before they start, the ledger of what ran, the provider's invoice."""
