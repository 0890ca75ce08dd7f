"""What is measured: each module is one probe of any task; `bigram` and `factual` hold those of one task."""
