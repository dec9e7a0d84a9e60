"""What `swarmd doctor` looks at. Each check gives findings with a severity and a next step.

machine    system, memory, disk, clock, limits of the system
peer       identity, files, ports, versions, the service unit
fit        the device, whether a stage of the run fits it, and how fast it would be
show       the picture of docs/cli.md 17.3
"""
