"""Floor 3: drivers on trio. They run the machines of floor 0 and own the daemon's I/O."""
