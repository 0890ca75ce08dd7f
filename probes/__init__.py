"""What is measured: each module is one probe."""
