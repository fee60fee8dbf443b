"""The live view: the running requests of all processes, and how to stop one."""
