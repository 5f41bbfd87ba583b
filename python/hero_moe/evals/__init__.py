"""The paper's 13 benchmarks for lm-evaluation-harness, and the table that compares models on them.

`python -m hero_moe.evals --models A B --data-dir D` evaluates and compares; the folder `suite` holds the
tasks for lm_eval's own command. docs/benchmarks.md describes the metrics.
"""
