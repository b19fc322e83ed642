"""Exact speculative decoding for mlx-lm models, including those whose caches cannot be trimmed."""

from speculate.decoding.block import Token
from speculate.decoding.decoder import Decoder
from speculate.decoding.stats import Stats
from speculate.decoding.window import Window, speculation
from speculate.errors import SpeculateError
from speculate.loading import adapt, load, load_demo, load_mtp_head
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import SpeculativeModel
from speculate.sampling.options import Sampling
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed, Off
from speculate.text import generate, stream_generate

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "Decoder",
    "DraftModel",
    "Fixed",
    "MTPChain",
    "Off",
    "PromptLookup",
    "Sampling",
    "SpeculateError",
    "SpeculativeModel",
    "Stats",
    "Token",
    "Window",
    "adapt",
    "generate",
    "load",
    "load_demo",
    "load_mtp_head",
    "speculation",
    "stream_generate",
]
