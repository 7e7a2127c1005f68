"""The faults of the machine, and the conditions that must hold, one module per family."""
