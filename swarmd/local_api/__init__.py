"""The control socket: server (trio) and client (stdlib)."""
