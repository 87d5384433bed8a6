"""Agents: algorithms as five pure functions over explicit state."""

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.agents.vtrace import make_vtrace_agent
from zerocopy_seed.config import AgentConfig, NetworkConfig
from zerocopy_seed.networks import make_network
from zerocopy_seed.types import Agent

__all__ = ["make_agent", "make_vtrace_agent"]


def make_agent(
    config: AgentConfig, network_config: NetworkConfig, spec: EnvironmentSpec, *, axis_name: str | None = None
) -> Agent:
    """The agent that `config` names, over a network made for `spec`.

    Raises:
      UserError: the network does not fit the environment, or cannot be loaded.
    """
    network = make_network(network_config, spec)
    return make_vtrace_agent(
        config, network, spec, frame_stack=network_config.frame_stack, axis_name=axis_name
    )
