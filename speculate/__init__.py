"""Exact speculative decoding for models of mlx-lm whose caches cannot be trimmed."""

from speculate.decoding.block import Token as Token
from speculate.decoding.decoder import Decoder as Decoder
from speculate.decoding.stats import Stats as Stats
from speculate.decoding.window import Window as Window
from speculate.decoding.window import speculation as speculation
from speculate.errors import SpeculateError as SpeculateError
from speculate.loading import adapt as adapt
from speculate.loading import load as load
from speculate.loading import load_demo as load_demo
from speculate.loading import load_mtp_head as load_mtp_head
from speculate.proposers.draft_model import DraftModel as DraftModel
from speculate.proposers.mtp_chain import MTPChain as MTPChain
from speculate.proposers.prompt_lookup import PromptLookup as PromptLookup
from speculate.protocols import SpeculativeModel as SpeculativeModel
from speculate.sampling.options import Sampling as Sampling
from speculate.strategies.adaptive import Adaptive as Adaptive
from speculate.strategies.fixed import Fixed as Fixed
from speculate.strategies.fixed import Off as Off
from speculate.text import generate as generate
from speculate.text import stream_generate as stream_generate
