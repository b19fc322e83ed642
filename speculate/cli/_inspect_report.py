"""The report of `speculate inspect`: what configs, headers and a head's norms say."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Final, Literal, cast, final

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import _get_classes
from rich.console import Console
from rich.table import Table
from rich.text import Text

from speculate.backends.adopt import adopt
from speculate.checkpoints.folder import check_layers, read_json, scan_folder, section, setting
from speculate.checkpoints.head import HeadSummary, find_head, summarize_head
from speculate.checkpoints.names import DENSE, strip_prefix
from speculate.checkpoints.norms import NormDecision
from speculate.cli._console import printable
from speculate.errors import CannotRewindError, HeadNotFoundError, UnsupportedModelError
from speculate.models.registry import factory_for
from speculate.protocols import SpeculativeModel, StockModel

MAX_LISTED_LAYERS: Final = 8
"""Layer indices that a line of the report lists."""


@final
@attrs.frozen
class LayerGroup:
    """Layers with caches of one class of mlx-lm's, and how these are rewound."""

    indices: tuple[int, ...]
    cache: str
    rewind: str
    can_rewind: bool


@final
@attrs.frozen
class Architecture:
    """What a config says about a model, or why its layers or its adapter are unknown."""

    adapter: str | None = None
    layers: tuple[LayerGroup, ...] = ()
    vocabulary_size: int | None = None
    problem: str | None = None


@final
@attrs.frozen
class TokenizerSummary:
    """What a draft model's tokenizer must match: a number of tokens, and a hash of all."""

    tokens: int
    fingerprint: str


@final
@attrs.frozen
class CheckpointReport:
    """Description of a checkpoint. Its fields are the keys of `--json`."""

    path: str
    model_type: str | None
    architecture: Architecture | None  # `None` for a head on its own.
    quantization: Mapping[str, object] | None
    dtypes: Mapping[str, int]  # Of the trunk's tensors on disk, with their numbers.
    prefix: str | None  # Of the names of the head's tensors.
    head: HeadSummary | None
    no_head: str | None  # Why there is no head.
    vocabulary_size: int | None
    tokenizer: TokenizerSummary | None


def inspect(path: Path, head_path: Path | Literal[False] | None = None) -> CheckpointReport:
    """Describe a folder or a safetensors file, without loading weights.

    The head is looked for there or in `head_path`; not at all with `False`.
    """
    found = scan_folder(path)
    config, name = found.config, found.config.get("model_type")
    trunk = [t for t in found.tensors.values() if strip_prefix(t.name) is None]
    made, prefix, head, why = None, None, None, None
    if head_path is False:
        why = "It was not looked for"
    else:
        try:
            files = find_head(head_path or path)
            prefix, head = files.prefix, summarize_head(files)
        except HeadNotFoundError as error:
            why = str(error)
    if prefix == "":
        trunk = [t for t in trunk if t not in files.tensors.values()]
    if path.is_dir() and config and not str(name).endswith("_mtp"):
        made = architecture(config, path)
    size = setting(config, "vocab_size")
    known = made.vocabulary_size if made else None
    return CheckpointReport(
        path=str(path),
        model_type=name if isinstance(name, str) else None,
        architecture=made,
        quantization=_quantization(config),
        dtypes=dict(Counter(tensor.dtype for tensor in trunk).most_common()),
        prefix=prefix,
        head=head,
        no_head=why,
        vocabulary_size=known or (size if isinstance(size, int) else None),
        tokenizer=_tokenizer(found.folder / "tokenizer.json") if path.is_dir() else None,
    )


def architecture(config: Mapping[str, object], folder: Path) -> Architecture:
    """Build mlx-lm's model from a config, and describe it.

    Its arrays are lazy and never evaluated: no weights are read or allocated.
    """
    check_layers(config, folder)
    if config.get("model_file") is not None:
        return Architecture(problem="the folder brings its own code, which is not run here")
    try:
        model_class, args_class = _get_classes(dict(config))
        # Look for an adapter first: without one the cost of building the model is unknown.
        factory = factory_for(model_class)
        stock = cast(StockModel, model_class(args_class.from_dict(deepcopy(dict(config)))))
        caches = make_prompt_cache(cast(Module, stock))
    except UnsupportedModelError as error:
        return Architecture(problem=str(error))
    except Exception as error:
        text = " ".join(str(error).split())
        return Architecture(problem=f"mlx-lm cannot build it: {type(error).__name__}: {text}")
    adapter, problem = None, None
    try:
        adapter = factory(stock, head=None, eos_token_ids=(), vocabulary=None)
    except UnsupportedModelError as error:
        problem = str(error)
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for index, pair in enumerate(zip(caches, _cut_layers(adapter, len(caches)), strict=True)):
        groups.setdefault(_describe(*pair), []).append(index)
    layers = tuple(LayerGroup(tuple(indices), *kind) for kind, indices in groups.items())
    if adapter is None:
        return Architecture(layers=layers, problem=problem)
    return Architecture(type(adapter).__name__, layers, adapter.vocab_size)


def _cut_layers(adapter: SpeculativeModel | None, layers: int) -> list[bool]:
    """For each layer, whether its cache can be cut within a block: an unevaluated one is fed."""
    # Where that fails the answer is no, since a block can always be rewound as a whole.
    found: list[bool] = []
    if adapter is not None:
        with suppress(Exception):
            caches = adapter.make_cache()
            for cache in caches:
                cache.start_speculation()
            adapter.forward(mx.zeros((1, 2), dtype=mx.uint32), caches)
            found = [cache.can_trim(1) for cache in caches]
    return found if len(found) == layers else [False] * layers


def _describe(cache: object, can_cut: bool) -> tuple[str, str, bool]:
    """A cache's kind, how it is rewound, and whether it can be."""
    try:
        adopt([cache])
    except CannotRewindError as error:
        return type(cache).__name__, f"not possible: {error}", False
    return *_kind_and_rewind(cache, can_cut), True


def _kind_and_rewind(cache: object, can_cut: bool) -> tuple[str, str]:
    if isinstance(cache, CacheList):
        members = [_kind_and_rewind(member, can_cut) for member in cache.caches]
        kinds = ", ".join(kind for kind, _ in members)
        return f"CacheList({kinds})", "; ".join(dict.fromkeys(rewind for _, rewind in members))
    kind = type(cache).__name__
    if isinstance(cache, RotatingKVCache):
        kind = f"RotatingKVCache({cache.max_size})"
        return kind, "exact, to any token: rows beyond the window are kept"
    if not isinstance(cache, ArraysCache):
        return kind, "exact, to any token: the offset moves back"
    if can_cut:
        return kind, "exact, to any token: the layer's inputs and states are recorded"
    return kind, "by whole blocks: accepted tokens are replayed"


def _quantization(config: Mapping[str, object]) -> Mapping[str, object] | None:
    levels = (config, section(config, "text_config"))
    keys = ("quantization", "quantization_config")
    return next(filter(None, (section(level, key) for level in levels for key in keys)), None)


def _tokenizer(path: Path) -> TokenizerSummary | None:
    if not path.exists():
        return None
    described = read_json(path)
    vocabulary = section(described, "model").get("vocab")
    if isinstance(vocabulary, dict):
        ids = dict(vocabulary)
    elif isinstance(vocabulary, list):
        pairs = [entry for entry in vocabulary if isinstance(entry, list) and entry]
        ids = {str(entry[0]): place for place, entry in enumerate(pairs)}
    else:
        return None
    added = described.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    text = json.dumps(sorted(ids.items()), ensure_ascii=True)
    return TokenizerSummary(len(ids), hashlib.sha256(text.encode()).hexdigest()[:12])


def show(report: CheckpointReport, check: Sequence[str]) -> None:
    """Print a report and the lines of a check: a table in a terminal, aligned lines elsewhere."""
    rows = [*_rows(report), *_labelled("check", check)]
    title, lines = printable(report.path), [(label, printable(text)) for label, text in rows]
    if not sys.stdout.isatty():
        width = max(len(label) for label, _ in lines)
        print(title, *(f"{label:<{width}}  {text}" for label, text in lines), sep="\n")
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        # Text from a file must not be read as markup.
        table.add_row(label, Text(text))
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(table)


def _labelled(label: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Lines of the report with the label of the first one; the others continue it."""
    for line in lines:
        yield label, line
        label = ""


def _rows(report: CheckpointReport) -> Iterator[tuple[str, str]]:
    made, head = report.architecture, report.head
    kind = "a head on its own" if made is None else made.adapter or "no adapter"
    yield "family", f"{report.model_type or 'unknown: there is no config.json'} ({kind})"
    if made is not None:
        if made.problem:
            yield "", made.problem
        yield from _labelled("layers", _layers(made.layers))
        yield "weights", _weights(report.quantization, report.dtypes)
    if head is None:
        yield "head", f"none. {report.no_head or ''}".strip()
    else:
        yield from _labelled("head", _head(report.prefix, head))
        yield from _labelled("head norms", map(_norm, head.norms))
    size = "unknown" if report.vocabulary_size is None else report.vocabulary_size
    yield "draft model", f"must have the same vocabulary size, apart from padding: {size}"
    same = "must have the same tokenizer"
    if known := report.tokenizer:
        yield "", f"{same}: {known.tokens} tokens, fingerprint {known.fingerprint}"
    else:
        yield "", f"{same}; tokenizer.json here does not describe it"


def _layers(groups: Sequence[LayerGroup]) -> Iterator[str]:
    if count := sum(len(group.indices) for group in groups):
        possible = all(group.can_rewind for group in groups)
        yield f"{count}; caches {'can' if possible else 'cannot'} be rewound"
    for group in groups:
        count = len(group.indices)
        shown = ", ".join(map(str, group.indices[:MAX_LISTED_LAYERS]))
        more = f", ... ({count} in all)" if count > MAX_LISTED_LAYERS else ""
        yield f"{shown}{more}: {group.cache}: {group.rewind}"


def _weights(quantization: Mapping[str, object] | None, dtypes: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.items())
    if quantization is None:
        return f"not quantised ({kinds})"
    special = sum(isinstance(value, dict) for value in quantization.values())
    named = [f"{k} {v}" for k, v in quantization.items() if not isinstance(v, dict | list)]
    text = f"quantised: {', '.join(named)}"
    return f"{text}; {special} modules otherwise ({kinds})" if special else f"{text} ({kinds})"


def _head(prefix: str | None, head: HeadSummary) -> Iterator[str]:
    names = f"{prefix}*" if prefix else "names without prefix"
    yield f"{names} in {', '.join(head.files)}"
    kinds = [kind if kind == DENSE else f"experts {kind}" for kind in head.experts]
    size = f"{head.size_bytes / 1e6:,.1f} MB"
    yield f"{head.tensors} tensors, {size}; layers: {', '.join(kinds) or 'none'}"
    parts = [
        f"{count} matrices {packing.mode} {packing.bits} bits, group {packing.group_size}"
        for packing, count in head.packings
    ]
    parts += [f"{count} matrices {dtype}" for dtype, count in head.plain.items()]
    parts += [f"{head.blocks} matrices of scaled 8-bit floats"] if head.blocks else []
    yield "; ".join(parts)
    if head.unknown_tensors:
        yield f"unknown tensors, not loaded: {', '.join(head.unknown_tensors)}"


def _norm(norm: NormDecision) -> str:
    stored = "gains" if norm.convention == "gains" else "raw (gains minus one)"
    return f"{norm.group}: {stored}; mean {norm.mean:.3g}: {norm.reason}"
