"""An episode of the evaluation policy as a moving picture."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from zerocopy_envs import registry
from zerocopy_envs.errors import UserError, users_code
from zerocopy_envs.host_adapter import HostedEnvironment
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import HostEnvironment, StepType, TimeStep
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.loops.environments import HostEnvironments
from zerocopy_seed.loops.host_play import play
from zerocopy_seed.types import ActingParams, Agent

_MAX_STEPS = 4000  # an episode that goes on is cut here
_MAX_GIF_FRAMES = 1000
_SMALLEST_SIDE = 160  # pixels; smaller pictures are enlarged
_SECONDS_OF_STEP = 1 / 30
_SECONDS_OF_BOARD = 1 / 5
_LARGEST_BOARD = 32  # pixels; a smaller picture shows a board, whose moves take time to see

_COLORS = np.array(
    [
        (255, 255, 255), (230, 75, 60), (60, 150, 230), (245, 200, 60), (80, 190, 110),
        (165, 95, 200), (240, 140, 50), (70, 200, 200), (225, 110, 170), (150, 150, 150),
    ],
    np.float32,
)  # fmt: skip
"""Of the channels of a picture that is not itself a colour picture."""


def check_video_path(path: pathlib.Path) -> None:
    """Refuses a file that cannot be written, before anything else is done.

    Raises:
      UserError: an unknown suffix, a folder that does not exist, or a suffix that needs the extra `video`.
    """
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(
            f"--video {path}", expected="a file name that ends in .gif or .mp4", found=repr(path.suffix)
        )
    if not path.absolute().parent.is_dir():
        raise UserError(f"--video {path}", expected="an existing folder", found="none")
    if path.is_dir():
        raise UserError(f"--video {path}", expected="a file", found="a folder")
    if path.suffix == ".mp4":
        for module in ("imageio", "imageio_ffmpeg"):
            importlib.import_module(module)  # the command names the extra


def record_video(
    agent: Agent,
    environment: Vectorized | HostEnvironments,
    params: ActingParams,
    path: pathlib.Path,
    *,
    name: str,
    seed: int,
) -> str:
    """Plays the first slot's first episode and writes it to `path`.

    Args:
      agent: acts by `Mode.EVALUATE`.
      environment: drawn by its own `render` where it has one, otherwise by an observation that is a picture.
      params: what acting reads.
      path: see `check_video_path`; an existing file is replaced once the new one is whole.
      name: the environment's, for messages.
      seed: of the evaluation.

    Returns:
      A line that says what was written.

    Raises:
      UserError: the environment cannot be drawn, which is found before anything compiles.
    """
    with contextlib.closing(_make_rendering(environment)) as slot:
        draw = _find_drawing(slot, name)
        frames: list[np.ndarray] = []
        total = 0.0
        for _, timestep in play(agent, slot, params, seed):
            with users_code(f"--video {path}", "the environment to draw itself"):
                frames.append(np.asarray(draw(timestep), np.uint8))
            total += float(timestep.reward[0])
            if timestep.step_type[0] == StepType.LAST or len(frames) > _MAX_STEPS:
                break
        repeat = slot.spec.action_repeat
    is_board = min(frames[0].shape[:2]) <= _LARGEST_BOARD
    seconds = repeat / 60 if repeat > 1 else _SECONDS_OF_BOARD if is_board else _SECONDS_OF_STEP
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        (_write_gif if path.suffix == ".gif" else _write_mp4)(part, [*map(_enlarge, frames)], seconds)
        os.replace(part, path)
    except OSError as error:
        raise UserError(
            f"--video {path}", expected="a file that can be written", found=error.strerror or str(error)
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return f"{path}: {len(frames) - 1:,} steps, return {total:.2f}"


def _make_rendering(environment: Vectorized | HostEnvironments) -> HostEnvironment:
    if isinstance(environment, Vectorized):
        return HostedEnvironment(environment, 1)
    settings = {**environment.settings, "render_mode": "rgb_array"}
    try:
        return registry.make(environment.name, num_envs=1, **settings)
    except UserError:  # it has no such setting; its observations may do
        return environment.make(1)


def _find_drawing(slot: HostEnvironment, name: str) -> Callable[[TimeStep], np.ndarray]:
    """What makes a picture [H, W, 3] of the slot's present timestep [1]."""
    render: Any = getattr(slot, "render", None)
    if render is not None:
        return lambda _: np.asarray(render())[0]
    for index, (_, leaf) in enumerate(named_leaves(slot.spec.observation)):
        if len(leaf.shape) in (2, 3) and min(leaf.shape[:2]) > 1:
            return lambda timestep: picture_of(
                [array for _, array in named_leaves(timestep.observation)][index][0]
            )
    shapes = ", ".join(f"{path} {list(leaf.shape)}" for path, leaf in named_leaves(slot.spec.observation))
    raise UserError(
        f"--video of {name}",
        expected="an environment that renders, or whose observation is a picture",
        found=shapes,
        remedy="name one with the same spec that does, --env NAME",
    )


def picture_of(observation: np.ndarray) -> np.ndarray:
    """An observation as uint8 [H, W, 3]: grey [H, W], colours uint8 [H, W, 3], or one colour a channel."""
    x = np.asarray(observation)
    if x.dtype == np.uint8 and x.ndim == 3 and x.shape[-1] == 3:
        return x
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    layers = np.clip(x.reshape(*x.shape[:2], -1).astype(np.float32) / scale, 0, 1)
    colors = _COLORS[np.arange(layers.shape[-1]) % len(_COLORS)]
    return (layers[..., None] * colors).max(2).astype(np.uint8)


def _enlarge(frame: np.ndarray) -> np.ndarray:
    """By whole pixels, so that nothing blurs."""
    factor = max(1, _SMALLEST_SIDE // min(frame.shape[:2]))
    return frame.repeat(factor, 0).repeat(factor, 1)


def _write_gif(path: pathlib.Path, frames: list[np.ndarray], seconds: float) -> None:
    from PIL import Image

    every = -(-len(frames) // _MAX_GIF_FRAMES)
    kept = [*frames[:-1:every], frames[-1]]
    # One palette for all frames: then a file holds only what changes from frame to frame.
    sample = np.concatenate(kept[:: max(1, len(kept) // 16)])
    palette = Image.fromarray(sample).quantize(128)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in kept]
    images[0].save(
        path,
        save_all=True,
        append_images=images[1:],
        duration=max(20, round(1000 * seconds * every)),  # viewers slow shorter ones down
        loop=0,
        optimize=False,
    )


def _write_mp4(path: pathlib.Path, frames: list[np.ndarray], seconds: float) -> None:
    import imageio  # pyright: ignore[reportMissingImports]  # an extra

    # The codec halves the resolution of colours, so that sides must be even.
    edges = [(0, size % 2) for size in frames[0].shape[:2]]
    even = [np.pad(frame, (*edges, (0, 0)), "edge") for frame in frames]
    imageio.mimwrite(path, even, fps=1 / seconds, macro_block_size=1)  # type: ignore[arg-type]
