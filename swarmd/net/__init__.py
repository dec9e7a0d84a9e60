"""Floor 2: bytes between peers, on trio. libp2p is imported in one file here, ssl in one."""
