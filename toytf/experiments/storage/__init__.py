"""The experiment `storage`: what each rule makes of the same pairs."""
