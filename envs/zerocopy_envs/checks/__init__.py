"""The parts of `zerocopy_envs.testing.check_environment`."""
