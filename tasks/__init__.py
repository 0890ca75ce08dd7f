"""What is learned: each folder is one task."""
