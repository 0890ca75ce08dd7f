"""The experiment `three_steps`: an induction head from three gradient steps."""
