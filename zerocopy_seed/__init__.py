"""One reinforcement-learning learner for simulators on the accelerator and off it."""
