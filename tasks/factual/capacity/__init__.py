"""The experiment `fact_capacity`: how many facts models of each size learn."""
