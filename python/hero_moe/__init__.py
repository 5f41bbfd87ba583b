"""Python side of hero-moe: figures and reports, and what connects the trainer to other programs."""
