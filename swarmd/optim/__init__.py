"""Floor 1: inner and outer optimisers, mixing and robust means. torch, pure functions."""
