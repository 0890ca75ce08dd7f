"""Speed, measured as ratios within one run; `toytf bench` runs these, and docs/performance.md says what they found."""
