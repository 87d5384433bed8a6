"""Measures how training speed grows with the number of environments, on one core.

python scripts/benchmark.py [CONFIG.toml]
"""

import dataclasses
import sys

from zerocopy_seed.bench.command import pin_to_one_core
from zerocopy_seed.bench.on_device import DEFAULT_CONFIG, measure
from zerocopy_seed.config_file import load_config


def main(config_path: str | None) -> None:
    config = load_config(config_path) if config_path else DEFAULT_CONFIG
    pin_to_one_core()
    print("environments  env_steps/s  of the limit")
    for num_envs in (64, 256, 1024):
        env = dataclasses.replace(config.env, num_envs=num_envs)
        result = measure(dataclasses.replace(config, env=env))
        print(f"{num_envs:>12}  {result['env_steps_per_s']:>11,.0f}  {result['ratio_to_limit']:>12.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
