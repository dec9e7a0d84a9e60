"""Floor 0: what peers say to each other and what each does about it, as values and pure machines.

Nothing here has a clock, a socket, a log, a random source of its own or an `await`. A machine takes
an event and the time, and returns effects; a driver carries them out. See README.md for the wire.
"""
