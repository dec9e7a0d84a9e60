"""Floor 2, beside net: the compute worker. torch, no trio, no sockets."""
