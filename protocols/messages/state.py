"""Messages of checkpoints and their transfer."""
