"""What is measured on bigram induction only."""
