"""What is done to the machine, and what must hold, one module per family."""
