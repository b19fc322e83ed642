"""Heads from disk or a hub."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from speculate.errors import (
    HeadNotFoundError,
    SpeculateWarning,
    StaleIndexError,
    UnsupportedModelError,
)
from speculate.loading.adapt import stock_of
from speculate.loading.folder import explained, locate
from speculate.loading.unpack import unpack_head
from speculate.protocols import MTPHead, SpeculativeModel, StockModel
from speculate.validation import validated_choice, validated_flag, validated_text

if TYPE_CHECKING:
    from speculate.checkpoints.norms import Convention
    from speculate.models.mtp_head import Feed


def load_mtp_head(
    path_or_repo: str | Path,
    model: SpeculativeModel | StockModel,
    *,
    norms: Convention | None = None,
    feed: Feed = "post_norm",
    dequantize: bool = False,
    revision: str | None = None,
) -> MTPHead:
    """Load a head for a model, to be attached by `adapt(..., head=head)`.

    Args:
        path_or_repo: A checkpoint that kept its head, a safetensors file that holds one, or
            a drafter published on its own.
        model: The trunk.
        norms: How the head's norms are stored, where you know better than the files tell.
        feed: What a chain feeds back; published heads are trained on the default.
        dequantize: Turn quantised weights into float32.
        revision: A branch, a tag or a commit of the repository.

    Raises:
        OptionError: An option cannot be used.
        HeadNotFoundError: There is none; a `StaleIndexError` where an index lists one.
        CheckpointError: It is damaged, or stored in a way that is not supported.
        HeadMismatchError: It does not fit the model.
        UnsupportedModelError: No head is known for the model's family.
    """
    from speculate.checkpoints import find_head, read_head
    from speculate.checkpoints.norms import CONVENTIONS
    from speculate.models.mtp_head import FEEDS, build_head

    validated_choice("norms", norms, (*CONVENTIONS, None))
    validated_choice("feed", feed, FEEDS)
    validated_flag("dequantize", dequantize)
    if revision is not None:
        validated_text("revision", revision)
    stock = stock_of(model)
    path = locate(path_or_repo, revision, head_only=True)
    with explained(path, "the head cannot be read"):
        tensors = read_head(find_head(path), norms=norms)
        return build_head(stock, unpack_head(tensors) if dequantize else tensors, feed=feed)


def head_for(
    stock: StockModel,
    folder: Path,
    head: str | Path | Literal[False] | None,
    *,
    dequantize: bool,
) -> MTPHead | None:
    """The head to attach while a model is loaded.

    Args:
        stock: The model.
        folder: Where it came from.
        head: Where the head is; `None` for the folder's own, if any; `False` for none.
        dequantize: Turn quantised weights into float32.
    """
    import logging

    logger = logging.getLogger(__name__)
    if head is False:
        return None
    if head is not None:
        return load_mtp_head(head, stock, dequantize=dequantize)
    try:
        return load_mtp_head(folder, stock, dequantize=dequantize)
    except StaleIndexError as error:
        # As if `load` had warned: it is the caller's folder.
        text = f"{folder}: loaded without its multi-token-prediction head: {error}"
        warnings.warn(text, SpeculateWarning, stacklevel=3)
    except HeadNotFoundError as error:
        logger.info("%s", error)
    except UnsupportedModelError as error:
        logger.warning("%s: the head is left out: %s", folder, error)
    return None
