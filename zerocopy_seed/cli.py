"""The `zerocopy-seed` command. Imports no JAX, so that help and mistakes answer at once."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import importlib
import importlib.metadata
import json
import math
import os
import pathlib
import socket
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from zerocopy_envs.errors import UserError, did_you_mean
from zerocopy_seed.config_file import load_config, load_run_config
from zerocopy_seed.config_flags import add_flags, num_words
from zerocopy_seed.extras import missing_extra

BENCHES = {
    "on_device": "the training loop of each CONFIG at each number of environments, against its parts "
    "alone: ratio_to_limit",
    "roofline": "updates of each CONFIG (V-trace, no core) against the device's peak FLOP/s and bytes/s: "
    "ratio_to_roofline",
    "core": "the LSTM, forward and backward, against its matrix products; its shape is fixed",
    "replay": "insert, sample and update of the replay, against flashbax's: ratio_to_flashbax; its shape "
    "is fixed",
    "mesh": "updates of each CONFIG over a mesh of one device, against the same without a mesh: "
    "ratio_to_unsharded",
    "members": "the runs of each CONFIG at once, 32 seeds unless it says so, against as many apart, from "
    "launch: ratio_to_separate; and while training: rate_ratio",
    "bridge": "messages of stand-in actors against bare gRPC, Pong against ALE alone: ratio_to_grpc, "
    "ratio_to_ale; its shapes are fixed",
}
"""Modules of `zerocopy_seed.bench`, each with `run(configs, *, num_envs, as_json)`; what each measures."""

_USER_ERROR = 2
_MOST_DAYS = 36_500


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; a mistake of the user's is one line on stderr.

    Args:
      arguments: the words after `zerocopy-seed`; None takes the process's own.

    Returns:
      The exit code: 0, 2 for a mistake of the user's, or what the command answers.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and not sys.flags.safe_path:
        sys.path.append("")  # modules in the current directory, as `python -m` finds them; installed ones win
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        return _run(words)
    except BrokenPipeError:
        # The reader has gone (`| head`); what is left in the buffer must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, ImportError) as error:
        code = _answer(error)
        if code is None:
            raise
        return code


def _run(words: list[str]) -> int:
    commands = {
        "train": (_train, "train an agent into a run directory"),
        "actor": (_actor, "step environments for a learner that runs elsewhere"),
        "launch": (_launch, "place actors on a cluster, and place anew those that end"),
        "evaluate": (_evaluate, "play whole episodes with a run's checkpoint"),
        "plot": (_plot, "draw the learning curves of several runs together"),
        "bench": (_bench, "measure speed"),
        "envs": (_envs, "list the environments"),
        "certs": (_certs, "make certificates and a token for learner and actors of a private cluster"),
        "doctor": (_doctor, "say what this installation and this machine can do, and what is broken"),
    }
    width = max(map(len, commands))
    parser = _Parser(
        "zerocopy-seed",
        usage="zerocopy-seed COMMAND ...",
        description="One reinforcement-learning learner for simulators on the accelerator and off it.",
        epilog="\n".join(
            ["commands:", *(f"  {name:<{width}}  {text}" for name, (_, text) in commands.items())]
            + ["", "`zerocopy-seed COMMAND --help` says more."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zerocopy-seed {_version()}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of those below")
    name = parser.parse_args(words[:1]).command
    if name is None:
        parser.print_help()
        return 0
    if name not in commands:
        remedy = did_you_mean(name, commands) or "see `zerocopy-seed --help`"
        raise UserError(name, expected=f"one of {', '.join(commands)}", remedy=remedy)
    command, description = commands[name]
    return command(_Parser(f"zerocopy-seed {name}", description=f"{description.capitalize()}."), words[1:])


def _train(parser: _Parser, words: list[str]) -> int:
    parser.usage = f"{parser.prog} CONFIG.toml [--section.key value ...] [--run-dir DIR] [--resume]"
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="a TOML file; --resume finds the run's own"
    )
    parser.add_argument("--run-dir", metavar="DIR", type=_directory, help="(default: runs/CONFIG-TIME)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of --run-dir")
    parser.add_argument(
        "--init-from", metavar="RUN_DIR", type=_directory, help="begin with that run's parameters"
    )
    parser.add_argument(
        "--profile", action="store_true", help="write a trace of two updates to RUN_DIR, for ui.perfetto.dev"
    )
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="train as one of several processes, usually one a host, each started with the same words: "
        "ADDRESS:PORT of the first, their number and this one's place, as in gpu0:8476,2,1; or auto, by "
        "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or within `srun` (default: one)",
    )
    # Help comes last, since it shows the values of the configuration that the other words name.
    parser.add_argument("-h", "--help", action="store_true", help="show this, with the values of CONFIG")
    own, overrides = _split(
        words, ("--run-dir", "--resume", "--init-from", "--profile", "--hosts", "-h", "--help")
    )
    options = parser.parse_args(own)
    path, run_dir = options.config, options.run_dir
    config = None
    if path is not None:
        config = load_config(path, overrides)
    elif options.resume and run_dir is not None:
        config = load_run_config(run_dir, overrides)
    if options.help:
        add_flags(parser, config)
        parser.print_help()
        return 0
    if options.resume and options.init_from is not None:
        raise UserError("--init-from", expected="a new run", found="--resume, which has its own parameters")
    if options.resume and run_dir is None:
        raise UserError("--resume", expected="--run-dir with the run to go on with", found="none")
    if config is None:
        raise UserError(
            "train", expected="a configuration file", found="none", remedy=f"usage: {parser.usage}"
        )
    if run_dir is None and options.hosts:
        raise UserError("--hosts", expected="--run-dir with the directory that all hosts share", found="none")
    if run_dir is None:
        started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        run_dir = pathlib.Path("runs") / f"{pathlib.Path(str(path)).stem}-{started}"

    from zerocopy_seed.rendezvous import SAME_SIGNAL_S, fork_and_wait, parse_hosts

    hosts = None if options.hosts is None else parse_hosts(options.hosts)
    if hosts is not None and (code := fork_and_wait(hosts)) is not None:
        return code

    from zerocopy_seed.loops.signals import StopRequest

    # Listening begins before the seconds that the imports take.
    with StopRequest(same_within_s=0.0 if hosts is None else SAME_SIGNAL_S) as stop:
        from zerocopy_seed.loops.train import train

        run = functools.partial(
            train,
            config,
            run_dir,
            resume=options.resume,
            init_from=options.init_from,
            profile=options.profile,
            stop=stop,
        )
        if hosts is None:
            return run()

        from zerocopy_seed.loops.joining import run_joined

        return run_joined(hosts, run, stop, answer=_answer)


def _actor_options(parser: _Parser, words: list[str]) -> argparse.Namespace:
    parser.add_argument("address", metavar="ADDRESS", help="of the learner: HOST:PORT or unix:PATH")
    parser.add_argument(
        "--num-envs", metavar="N", type=int, help="how many environments (default: as the learner says)"
    )
    parser.add_argument(
        "--env",
        metavar="NAME",
        help="the environment (default: the learner's, if a registered suite has it; "
        "package.module:factory must be named here), or another with the same spec",
    )
    parser.add_argument("--ca", metavar="FILE", default="", help="CA of the learner's certificate: speak TLS")
    parser.add_argument(
        "--cert", metavar="FILE", default="", help="own certificate, if the learner wants one"
    )
    parser.add_argument("--key", metavar="FILE", default="", help="its key")
    parser.add_argument("--token-file", metavar="FILE", default="", help="the token that the learner wants")
    parser.add_argument(
        "--reconnect-s",
        metavar="S",
        type=float,
        default=600.0,
        help="seconds to try to reach the learner, at the start and after a loss; inf for ever "
        "(default: %(default)g)",
    )
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)  # `train` ties its own actors to it
    _add_help(parser)
    options = parser.parse_args(words)
    if options.num_envs is not None and options.num_envs < 1:
        raise UserError("--num-envs", expected="at least 1", found=str(options.num_envs))
    if not options.reconnect_s >= 0:
        raise UserError("--reconnect-s", expected="at least 0", found=str(options.reconnect_s))
    return options


def _actor(parser: _Parser, words: list[str]) -> int:
    options = _actor_options(parser, words)

    from zerocopy_seed.remote.access import read_actor_credentials
    from zerocopy_seed.remote.actor import run_actor

    credentials = read_actor_credentials(
        options.address,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
        token_file=options.token_file,
    )
    return run_actor(
        options.address,
        credentials=credentials,
        num_envs=options.num_envs,
        env=options.env,
        reconnect_s=options.reconnect_s,
        parent_pid=options.parent_pid,
    )


def _launch(parser: _Parser, words: list[str]) -> int:
    parser.usage = f"{parser.prog} ray --actors N [--num-envs K] ADDRESS [...]"
    parser.description = (
        "Keeps N actors on a Ray cluster until the run is over, or Ctrl-C. Options of `zerocopy-seed actor` "
        "are handed on to each: files that they name are to be there on every node, by absolute paths."
    )
    engine = words[0] if words else None
    if engine not in ("ray", "-h", "--help"):
        raise UserError("launch", expected="ray", found=engine or "nothing", remedy=f"usage: {parser.usage}")
    own = _Parser(parser.prog, add_help=False)
    for reader in (own, parser):  # the one parts the words, the other has the help and refuses mistakes
        reader.add_argument("--actors", metavar="N", type=int, required=True, help="how many actors")
        reader.add_argument(
            "--cpus-per-actor",
            metavar="C",
            type=float,
            default=1.0,
            help="that Ray reserves for each (default: %(default)g)",
        )
        reader.add_argument(
            "--ray-address",
            metavar="A",
            default="auto",
            help="HOST:PORT, ray://HOST:PORT, or local for a cluster of this launch alone "
            "(default: the cluster that this machine is part of)",
        )
    arguments = words[1:] if engine == "ray" else words
    options = _actor_options(parser, arguments)
    _, handed_on = own.parse_known_args(arguments)
    if options.actors < 1:
        raise UserError("--actors", expected="at least 1", found=str(options.actors))
    cpus = options.cpus_per_actor
    if not 0 < cpus < math.inf or (cpus > 1 and cpus % 1):
        raise UserError("--cpus-per-actor", expected="a whole number, or a part of 1", found=f"{cpus:g}")

    from zerocopy_seed.remote.addresses import parse_address

    parse_address(options.address)

    from zerocopy_seed.launch_ray import launch_on_ray

    return launch_on_ray(handed_on, num_actors=options.actors, num_cpus=cpus, ray_address=options.ray_address)


def _evaluate(parser: _Parser, words: list[str]) -> int:
    parser.add_argument("run_dir", metavar="RUN_DIR", type=pathlib.Path, help="what `train` wrote")
    parser.add_argument(
        "--episodes", metavar="N", type=int, default=128, help="how many (default: %(default)s)"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--step", metavar="K", type=_step, help="which checkpoint, a number or best (default: the newest)"
    )
    parser.add_argument(
        "--env", metavar="NAME", help="another environment with the same spec (default: the run's)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument(
        "--video", metavar="FILE", type=pathlib.Path, help="show an episode too: a .gif, or a .mp4"
    )
    _add_help(parser)
    options = parser.parse_args(words)
    if options.episodes < 1:
        raise UserError("--episodes", expected="at least 1", found=str(options.episodes))
    if options.seed not in range(2**32):  # as `seed` of a configuration
        raise UserError("--seed", expected="at least 0 and less than 2^32", found=str(options.seed))
    load_run_config(options.run_dir)  # a wrong directory is refused before JAX is imported

    from zerocopy_seed.loops.signals import ending_at_once

    with ending_at_once("the evaluation has not ended: it has no result"):
        from zerocopy_seed.loops.console import complain
        from zerocopy_seed.loops.evaluate import evaluate_run
        from zerocopy_seed.loops.signals import hearing_signals

        result = hearing_signals(
            lambda: evaluate_run(
                options.run_dir,
                num_episodes=options.episodes,
                seed=options.seed,
                step=options.step,
                env=options.env,
                video=options.video,
                warn=complain,
            )
        )
    print(json.dumps(result.to_json_object()) if options.json else result)
    return 0


def _plot(parser: _Parser, words: list[str]) -> int:
    parser.add_argument(
        "run_dirs",
        metavar="RUN_DIR",
        nargs="+",
        type=pathlib.Path,
        help="what `train` wrote; many runs are drawn as their interquartile mean with its 95%% interval",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=pathlib.Path,
        default=pathlib.Path("learning_curves.png"),
        help="the picture: .png, .svg or .pdf (default: %(default)s)",
    )
    _add_help(parser)
    options = parser.parse_args(words)
    if options.output.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--output {options.output}", expected="a name that ends in .png, .svg or .pdf")

    from zerocopy_seed.curves import read_curves
    from zerocopy_seed.plotting import plot_curves

    curves = []
    names = [run_dir.resolve().name for run_dir in options.run_dirs]
    for run_dir, name in zip(options.run_dirs, names, strict=True):
        curves += read_curves(run_dir, name if names.count(name) == 1 else str(run_dir))
    try:
        plot_curves(curves, options.output, "learning curves")
    except OSError as error:
        raise UserError(
            f"--output {options.output}",
            expected="a file that can be written",
            found=error.strerror or str(error),
        ) from error
    of = "1 run directory" if len(options.run_dirs) == 1 else f"{len(options.run_dirs)} run directories"
    print(f"{options.output}: {len(curves)} curve{'s' * (len(curves) != 1)} of {of}")
    return 0


def _bench(parser: _Parser, words: list[str]) -> int:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, BENCHES))
    parser.epilog = "\n".join(
        ["benches:"]
        + [
            textwrap.fill(
                text, 100, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4)
            )
            for name, text in BENCHES.items()
        ]
    )
    parser.add_argument("name", metavar="NAME", help="one of those below")
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        action="append",
        help="measure this; may be repeated (default: the bench's own; not where a shape is fixed)",
    )
    parser.add_argument(
        "--num-envs",
        metavar="N",
        type=int,
        nargs="+",
        default=[],
        help="measure each (default: CONFIG's; not where a shape is fixed)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    _add_help(parser)
    options = parser.parse_args(words)
    if options.name not in BENCHES:
        remedy = did_you_mean(options.name, BENCHES)
        raise UserError(f"bench {options.name}", expected=f"one of {', '.join(BENCHES)}", remedy=remedy)
    for size in options.num_envs:
        if size < 1:
            raise UserError("--num-envs", expected="at least 1", found=str(size))
    given: dict = {"configs": [load_config(path) for path in options.config]} if options.config else {}

    importlib.import_module(f"zerocopy_seed.bench.{options.name}").run(
        **given, num_envs=options.num_envs, as_json=options.json
    )
    return 0


def _envs(parser: _Parser, words: list[str]) -> int:
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    _add_help(parser)
    options = parser.parse_args(words)

    from zerocopy_envs.listing import describe_environments

    rows = [dataclasses.asdict(row) for row in describe_environments()]
    if options.json:
        print(json.dumps(rows))
        return 0
    fitting = [row for row in rows if not row["problem"]]
    _print_table(
        ("name", "observation", "action", "max episode steps"),
        [
            (row["name"], row["observation"], row["action"], row["max_episode_steps"] or "-")
            for row in fitting
        ],
    )
    for row in rows:
        if row["problem"] or row["note"]:
            print(f"{row['name']}: {row['problem'] or row['note']}")
    return 0


def _certs(parser: _Parser, words: list[str]) -> int:
    parser.add_argument("directory", metavar="DIR", type=_directory, help="is made; nothing is written over")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        help="name or number by which actors reach the learner; may be repeated "
        "(default: this machine's name)",
    )
    parser.add_argument(
        "--days",
        metavar="D",
        type=float,
        default=365.0,
        help="that the certificates are good for (default: %(default)g)",
    )
    _add_help(parser)
    options = parser.parse_args(words)
    if not 0 < options.days <= _MOST_DAYS:
        expected = f"more than 0 and at most {_MOST_DAYS}"
        raise UserError("--days", expected=expected, found=f"{options.days:g}")

    from zerocopy_seed.certificates import next_steps, write_credentials

    hosts = options.host or [socket.gethostname()]
    write_credentials(options.directory, hosts, days=options.days)
    print(next_steps(options.directory, hosts[0]))
    return 0


def _doctor(parser: _Parser, words: list[str]) -> int:
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        default="127.0.0.1:0",
        help="that a learner would listen at (default: %(default)s)",
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        type=_directory,
        default=pathlib.Path("runs"),
        help="where it would write (default: %(default)s)",
    )
    _add_help(parser)
    options = parser.parse_args(words)

    from zerocopy_seed import doctor

    return doctor.run(options.address, options.run_dir)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `UserError`s, so that they are one line."""

    def __init__(self, prog: str, **options):
        super().__init__(prog, allow_abbrev=False, **{"add_help": " " not in prog, **options})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}", remedy=f"see `{self.prog} --help`")


def _add_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="help", help="show this")


def _directory(word: str) -> pathlib.Path:
    if not word:
        raise argparse.ArgumentTypeError("expected a directory, found nothing")
    return pathlib.Path(word)


def _step(word: str) -> int | str:
    return word if word == "best" else int(word)


def _split(words: list[str], options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts a command's own words, options and positional ones, from the flags of a configuration."""
    own: list[str] = []
    overrides: list[str] = []
    taker, room = own, 0
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and name in options:
            taker = own
        elif word.startswith("--"):
            taker, room = overrides, 0 if equals else num_words(name)
        elif taker is overrides:
            # what a flag has no room for is the command's: `--seed 3 CONFIG.toml`
            taker, room = (overrides if room else own), room - 1
        taker.append(word)
    return own, overrides


def _print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _answer(error: BaseException) -> int | None:
    """Says a mistake of the user's in one line, and gives the exit code; None of another error."""
    mistake = missing_extra(error) if isinstance(error, ImportError) else error
    return _complain(mistake) if isinstance(mistake, UserError) else None


def _complain(error: UserError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return _USER_ERROR


def _version() -> str:
    try:
        return importlib.metadata.version("zerocopy_seed")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
