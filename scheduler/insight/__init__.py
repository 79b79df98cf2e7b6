"""Reads the database for status, explanations, forecasts and reports, as plain data for people and programs."""
