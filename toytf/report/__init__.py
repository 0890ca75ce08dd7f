"""Showing a run: figures, the page, the terminal."""
