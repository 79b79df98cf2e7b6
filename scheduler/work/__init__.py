"""Carries out claimed runs; never uses the database."""
