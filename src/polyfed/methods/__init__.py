"""One file per method; it reads like the paper's algorithm box."""
