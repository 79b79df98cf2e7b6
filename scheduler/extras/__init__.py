"""What most installations never load: each package plugs in at an extension point of the core, by its entry points."""
