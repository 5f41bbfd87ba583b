"""The results of `hero study`: the comparison of variants over seeds."""
