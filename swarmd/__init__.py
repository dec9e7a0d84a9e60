"""swarmd: a peer daemon for permissionless swarm training of language models."""

__version__ = "0.1.0"
