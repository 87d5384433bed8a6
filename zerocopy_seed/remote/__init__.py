"""The bridge: actors anywhere step environments, the learner's accelerator drives them. Imports no JAX."""
