"""Arguments that say how tokens are chosen, named as in mlx-lm."""

from __future__ import annotations

import argparse
import secrets

from speculate.sampling.options import MODES, Sampling


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add `--temp` and what goes with it."""
    group = parser.add_argument_group("sampling, as in mlx-lm")
    add = group.add_argument
    add(
        "--temp",
        type=float,
        default=0.0,
        metavar="T",
        help="temperature (default: %(default)g, greedy)",
    )
    add("--top-p", type=float, default=1.0, metavar="P", help="keep this much probability")
    add("--top-k", type=int, default=0, metavar="K", help="keep this many tokens")
    add("--min-p", type=float, default=0.0, metavar="P", help="keep tokens this likely, relatively")
    add("--min-tokens-to-keep", type=int, default=1, metavar="N", help="whatever --min-p says")
    add("--xtc-probability", type=float, default=0.0, metavar="P", help="how often XTC cuts in")
    add("--xtc-threshold", type=float, default=0.1, metavar="P", help="above which XTC removes")
    for name in ("repetition", "presence", "frequency"):
        add(f"--{name}-penalty", type=float, metavar="X", help=f"{name} penalty")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text, whoever drafts")
    add(
        "--mode",
        choices=MODES,
        default="coupled",
        help="how drafts are judged (default: %(default)s)",
    )


def sampling_of(args: argparse.Namespace) -> Sampling:
    """The options, with a seed of their own where none is given, so that it can be told.

    Raises:
        OptionError: A value cannot be used.
    """
    seed = args.seed
    if seed is None and args.temp > 0:
        seed = secrets.randbits(31)
    return Sampling(
        temperature=args.temp,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        min_tokens_to_keep=args.min_tokens_to_keep,
        xtc_probability=args.xtc_probability,
        xtc_threshold=args.xtc_threshold,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=seed,
        mode=args.mode,
    )
