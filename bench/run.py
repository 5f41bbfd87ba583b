"""Every benchmark, one after another: the figures in docs/results."""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    operators = HERE.parent / "build/bench_ops"
    if operators.exists():
        subprocess.run([operators, "--benchmark_min_time=0.05"], check=True)
    subprocess.run([sys.executable, HERE / "train_speed.py"], check=True)
    subprocess.run([sys.executable, HERE / "tokenize_speed.py"], check=True)


if __name__ == "__main__":
    main()
