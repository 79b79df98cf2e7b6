"""Decides what happens to everything that is due: claims runs, records results, applies requests, one transaction at a time."""
