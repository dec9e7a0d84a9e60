"""Messages of the exchange between replicas."""
