"""Reads the database for people and programs: status, explanations, forecasts, reports."""
