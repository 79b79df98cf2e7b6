"""Plain values that pass between the modules of the daemon."""
