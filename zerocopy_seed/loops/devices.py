"""Which devices learn and which act for actors, and how what they exchange lies on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import DevicesConfig
from zerocopy_seed.loops.on_device import DATA_AXIS, LEARNER_SPECS
from zerocopy_seed.types import Trajectory

TRAJECTORY_SPECS: Any = Trajectory(
    timestep=P(None, DATA_AXIS),  # type: ignore[arg-type]
    action=P(None, DATA_AXIS),
    actor_output=P(None, DATA_AXIS),
    recurrent=P(DATA_AXIS),  # type: ignore[arg-type]
    slot=P(DATA_AXIS),
    continues=P(DATA_AXIS),
)
"""How a Trajectory lies on a mesh: its unrolls spread over the devices."""


def make_mesh(num_devices: int) -> Mesh | None:
    """The first `num_devices`; None for one.

    Raises:
      UserError: there are not so many.
    """
    require_devices("devices.learner", num_devices, 0)
    return Mesh(np.array(jax.devices()[:num_devices]), (DATA_AXIS,)) if num_devices > 1 else None


def require_devices(field: str, num_devices: int, num_taken: int) -> None:
    """Refuses more devices than there are.

    Raises:
      UserError: naming `field`, and how many are left besides the `num_taken`.
    """
    available = jax.device_count() - num_taken
    if num_devices > available:
        besides = f" besides the learner's {num_taken}" if num_taken else ""
        raise UserError(
            field,
            expected=f"at most {available}, the {jax.default_backend()} devices here{besides}",
            found=str(num_devices),
        )


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a run whose environments are in actors learns and acts.

    Attributes:
      mesh: of the devices that learn; None for one.
      inference: the device that acts.
    """

    mesh: Mesh | None
    inference: Any

    @property
    def is_one_device(self) -> bool:
        """Whether nothing moves between devices."""
        return self.mesh is None and self.inference == jax.devices()[0]

    def to_learner(self, trajectory: Any) -> Any:
        """Unrolls that acting left on its device, where `learn` wants them; or their types likewise."""
        if self.is_one_device:
            return trajectory
        return _move(trajectory, self._spread(TRAJECTORY_SPECS, trajectory))

    def to_inference(self, params: Any) -> Any:
        """What acting reads, of which every learning device has a copy, on the device that acts."""
        return params if self.is_one_device else jax.device_put(params, self.inference)

    def learner(self, state: Any) -> Any:
        """A LearnerState laid out over the devices that learn."""
        return state if self.mesh is None else jax.device_put(state, self._spread(LEARNER_SPECS, state))

    def sharded(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function` over the mesh; itself without one."""
        if self.mesh is None:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)

    def _spread(self, specs: Any, tree: Any) -> Any:
        """A sharding for every leaf."""
        if self.mesh is None:
            one = SingleDeviceSharding(jax.devices()[0])
            return jax.tree.map(lambda _: one, tree)
        mesh = self.mesh
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda _: NamedSharding(mesh, spec), part), specs, tree
        )


def place_bridge(config: DevicesConfig) -> Placement:
    """The devices of a run whose environments are in actors.

    Raises:
      UserError: there are not so many.
    """
    mesh = make_mesh(config.learner)
    require_devices("devices.inference", config.inference, config.learner)
    return Placement(mesh, jax.devices()[config.learner if config.inference else 0])


def _move(tree: Any, shardings: Any) -> Any:
    def one(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.device_put(leaf, sharding)

    return jax.tree.map(one, tree, shardings)
