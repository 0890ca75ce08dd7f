"""Speed, measured as ratios within one run; `toytf bench` runs these."""
