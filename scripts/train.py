"""Trains Catch from Python, as `zerocopy-seed train` does from a file, and plays with the result.

python scripts/train.py runs/my-catch [total_env_steps]
"""

import pathlib
import sys

from zerocopy_seed.config import Config, EnvConfig, NetworkConfig, VTraceConfig
from zerocopy_seed.config_checks import validate
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.train import train


def main(run_dir: pathlib.Path, total_env_steps: int) -> int:
    config = Config(
        env=EnvConfig("zerocopy:Catch", num_envs=64, settings={"columns": 5}),
        total_env_steps=total_env_steps,
        agent=VTraceConfig(unroll_length=20, learning_rate=2e-3, vtrace_lambda=0.95),
        network=NetworkConfig(hidden_sizes=(64, 64)),
    )
    validate(config)
    exit_code = train(config, run_dir)
    print(evaluate_run(run_dir, num_episodes=128))
    return exit_code


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200_000))
