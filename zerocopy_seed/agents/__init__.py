"""Agents: algorithms as five pure functions over explicit state."""

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.agents.r2d2 import make_r2d2_agent, require_discrete_action
from zerocopy_seed.agents.vtrace import make_vtrace_agent
from zerocopy_seed.config import AgentConfig, NetworkConfig, R2D2Config
from zerocopy_seed.networks import make_network
from zerocopy_seed.types import Agent

__all__ = ["make_agent", "make_r2d2_agent", "make_vtrace_agent"]


def make_agent(
    config: AgentConfig,
    network_config: NetworkConfig,
    spec: EnvironmentSpec,
    *,
    num_slots: int,
    axis_name: str | None = None,
    num_on_device: int | None = None,
) -> Agent:
    """The agent that `config` names, over a network made for `spec`.

    Args:
      config: the algorithm and its settings.
      network_config: the network.
      spec: the environment's.
      num_slots: environments that act for it, all devices together.
      axis_name: mesh axis over which slots are spread, inside `shard_map`; None for one device.
      num_on_device: of the slots, where others are in actors; see `make_vtrace_agent`.

    Raises:
      UserError: the network does not fit the environment, or cannot be loaded; the agent has no such actions.
    """
    if isinstance(config, R2D2Config):  # before a network is made for such actions
        require_discrete_action(spec)
    network = make_network(network_config, spec)
    frame_stack = network_config.frame_stack
    if isinstance(config, R2D2Config):
        return make_r2d2_agent(
            config, network, spec, num_slots=num_slots, frame_stack=frame_stack, axis_name=axis_name
        )
    return make_vtrace_agent(
        config,
        network,
        spec,
        frame_stack=frame_stack,
        axis_name=axis_name,
        num_on_device=num_on_device,
    )
