"""What is measured on factual recall only."""
