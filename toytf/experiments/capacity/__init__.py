"""The experiment `capacity`: how many pairs each rule stores."""
