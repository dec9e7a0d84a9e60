"""Floor 3: the seeded simulator. stdlib only: no trio, no torch, no sockets."""
