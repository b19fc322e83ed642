"""What speculation can bring on a machine, from bytes and operations alone."""
