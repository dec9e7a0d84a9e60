"""Floor 1: the model, its cut into stages and the boundaries between them. torch."""
