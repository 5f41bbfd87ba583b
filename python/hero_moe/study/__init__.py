"""What `hero study` writes when its runs are finished: the comparison of variants over seeds."""
