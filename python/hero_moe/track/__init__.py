"""`python -m hero_moe.track`: sends runs to an experiment tracker."""
