"""One module for each system whose config can be imported, and the registry that lists them."""
