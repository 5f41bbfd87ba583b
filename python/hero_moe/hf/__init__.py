"""Modelling code that HERO model folders carry, so that transformers opens them (`trust_remote_code=True`).

`hero_router.py` and one `modeling_*.py` lie beside the weights in every such folder.
"""
