"""`swarmd local`: a real swarm of separate processes on this machine.

The parent knows its peers only through what everybody may use: the command line that starts them,
their control sockets, their exit codes and the files in their homes. See docs/cli.md section 15.
"""
