"""Modeling code for HERO and RMoE model folders, so that transformers can load them with
`trust_remote_code=True`.

Such a folder contains `<kind>_router.py` and `modeling_<kind>_<model_type>.py` next to the weights. Each kind
has modeling files of its own, because no other files come with a folder; they differ in the kind's name only.
"""
