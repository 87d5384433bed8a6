"""How a run lies on a mesh of devices: slots, their replay and their unrolls spread, the learner everywhere.

A mesh may have a second axis, over which large layers are split: that one is XLA's business, which sums and
gathers where a product needs it. The first is written out (`shard_map`), so that nothing else is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zerocopy_envs.errors import UserError
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.types import LearnerState, Trajectory

DATA_AXIS, MODEL_AXIS = "data", "model"

_LARGE = 2**16  # numbers in a layer; to split smaller ones costs more than it saves

LEARNER_SPECS: Any = LearnerState._make(
    P(DATA_AXIS) if name == "replay" else P() for name in LearnerState._fields
)
STATE_SPECS: Any = TrainState(LEARNER_SPECS, actor=P(DATA_AXIS), episodes=P(DATA_AXIS))
TRAJECTORY_SPECS: Any = Trajectory(
    timestep=P(None, DATA_AXIS),  # type: ignore[arg-type]
    action=P(None, DATA_AXIS),
    actor_output=P(None, DATA_AXIS),
    recurrent=P(DATA_AXIS),  # type: ignore[arg-type]
    slot=P(DATA_AXIS),
    continues=P(DATA_AXIS),
)
"""Of LearnerState, TrainState and Trajectory, over the first axis."""
_PLAYED_SPECS: Any = jax.tree.map(lambda spec: P(None, *spec), TRAJECTORY_SPECS)  # several, one by one


def shardings(specs: Any, tree: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every leaf of `tree`, which may be types: `specs`, and large layers split.

    Args:
      specs: a prefix of the tree.
      tree: a LearnerState, a TrainState or a Trajectory.
      mesh: with DATA_AXIS, and perhaps MODEL_AXIS.
    """
    split = mesh.shape.get(MODEL_AXIS, 1)

    def of(spec: P, leaf: Any) -> NamedSharding:
        is_large = leaf.ndim > 1 and leaf.size >= _LARGE and leaf.shape[-1] % split == 0
        if spec == P() and split > 1 and is_large:
            spec = P(*[None] * (leaf.ndim - 1), MODEL_AXIS)
        return NamedSharding(mesh, spec)

    return jax.tree.map(lambda spec, part: jax.tree.map(lambda leaf: of(spec, leaf), part), specs, tree)


def lay_out(specs: Any, tree: Any, mesh: Mesh) -> Any:
    """Arrays, or their types, with those shardings."""

    def one(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.device_put(leaf, sharding)

    return jax.tree.map(one, tree, shardings(specs, tree, mesh))


def require_split(params: Any, mesh: Mesh) -> None:
    """Refuses a second axis over which none of the parameters, or their types, is split.

    Raises:
      UserError: with the largest of them.
    """
    split = mesh.shape.get(MODEL_AXIS, 1)
    leaves = jax.tree.leaves(params)
    if split == 1 or any(MODEL_AXIS in leaf.sharding.spec for leaf in leaves):
        return
    largest = max(leaves, key=lambda leaf: leaf.size)
    raise UserError(
        "devices.model",
        expected=f"1, or a layer of {_LARGE:,} numbers or more whose last axis {split} divides",
        found=f"{split}, and {largest.shape} as the largest",
    )


def of_all_hosts(specs: Any, tree: Any, mesh: Mesh) -> Any:
    """Every host's arrays, of its own part, as one array of all; `specs` is a prefix of the tree."""

    def one(spec: P, leaf: Any) -> Any:
        leaf = jax.device_put(leaf, NamedSharding(mesh.local_mesh, spec))  # else it is cut up piece by piece
        return multihost_utils.host_local_array_to_global_array(leaf, mesh, spec)

    return jax.tree.map(lambda spec, part: jax.tree.map(lambda leaf: one(spec, leaf), part), specs, tree)


def over_mesh(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function`, of which every device along the first axis runs its own part."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={DATA_AXIS})


def shard_dispatch(
    dispatch: Callable[..., Any], mesh: Mesh, *, is_recorded: bool = False
) -> Callable[..., Any]:
    """`make_dispatch`'s function over `mesh`: every device runs its own slots, gradients are summed.

    Args:
      dispatch: that function, or with `is_recorded` that of `make_recorded_dispatch`.
      mesh: over which slots are spread.
      is_recorded: whether it also gives trajectories.
    """
    return over_mesh(dispatch, mesh, (STATE_SPECS, P(), P()), _output_specs(is_recorded))


def dispatch_shardings(state: TrainState, mesh: Mesh, *, is_recorded: bool = False) -> Any:
    """Where `shard_dispatch`'s function leaves what it returns: a state, that of before."""
    specs = _output_specs(is_recorded)
    others = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs[1:])
    return jax.tree.map(lambda leaf: leaf.sharding, state), *others


def _output_specs(is_recorded: bool) -> tuple[Any, ...]:
    return (STATE_SPECS, P(), _PLAYED_SPECS) if is_recorded else (STATE_SPECS, P())
