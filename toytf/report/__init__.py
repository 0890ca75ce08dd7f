"""Showing a run: the table, the page, the terminal."""
