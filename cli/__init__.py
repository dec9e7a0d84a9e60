"""Floor 5: the command line. click and rich; talks to the daemon over its control socket."""
