"""A loaded model, in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from speculate.cli.verify.report import Verified
from speculate.errors import CheckpointError
from speculate.protocols import StockModel

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

    from speculate.testing.verify import Subject


def described(name: str, draft: str | None, subject: Subject) -> Verified:
    """What a model is, and how it rounds here.

    Raises:
        CheckpointError: It does not run on this machine.
    """
    try:
        noise = subject.rounding.noise
        logits = subject.oracle.cold(subject.ids(0, 1))
    except Exception as error:
        from speculate.checkpoints.folder import summarize_error

        raise CheckpointError(
            f"{name}: does not run on this machine: {summarize_error(error)}"
        ) from error
    caches = Counter(type(cache).__name__ for cache in subject.oracle.caches())
    about = {
        "family": _family(subject),
        "logits": _plain(logits.dtype),
        "weights": "unknown" if subject.oracle.stock is None else _weights(subject.oracle.stock),
        "caches": ", ".join(f"{count} {kind}" for kind, count in caches.items()),
        "drafts": ", ".join(_drafter(drafter.name, draft) for drafter in subject.drafters),
    }
    return Verified(name, about, noise)


def _family(subject: Subject) -> str:
    """The architecture as mlx-lm calls it, and what drives it."""
    stock, adapter = subject.oracle.stock, type(subject.model).__name__
    if stock is None:
        return f"unknown ({adapter})"
    return f"{type(stock).__module__.rpartition('.')[2]} ({adapter})"


def _weights(stock: StockModel) -> str:
    """Formats of the matrices that are quantised, and types of all that is not."""
    module = cast("Module", stock)
    formats: Counter[str] = Counter()
    for _, part in module.named_modules():
        settings = vars(part)
        if "bits" in settings:
            mode, bits, group = (settings.get(name) for name in ("mode", "bits", "group_size"))
            formats[f"{mode} {bits} bits, group {group}"] += 1
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters()))
    dtypes = Counter(_plain(weight.dtype) for _, weight in weights if weight.dtype != mx.uint32)
    quantised = [f"{count} matrices {kind}" for kind, count in formats.most_common()]
    return "; ".join([*quantised, ", ".join(dtype for dtype, _ in dtypes.most_common())])


def _drafter(name: str, draft: str | None) -> str:
    return f"{name} ({draft})" if name == "draft" and draft else name


def _plain(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]
