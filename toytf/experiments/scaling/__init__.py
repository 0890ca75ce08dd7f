"""The study `scaling`."""
