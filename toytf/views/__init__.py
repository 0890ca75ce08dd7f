"""What a trained model holds, as objects that the page of a run, notebooks and probes share."""
