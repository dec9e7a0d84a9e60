"""Messages of leases and receipts."""
