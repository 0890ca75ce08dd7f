"""The study `dynamics`."""
