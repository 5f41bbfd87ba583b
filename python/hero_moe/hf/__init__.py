"""Modeling code for HERO model folders, so that transformers can load them (`trust_remote_code=True`).

Every such folder contains `hero_router.py` and one `modeling_*.py` next to the weights.
"""
