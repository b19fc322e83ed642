"""Exact speculative decoding for models of mlx-lm whose caches cannot be trimmed."""

from speculate.decoding.decoder import Decoder as Decoder
from speculate.decoding.stats import Stats as Stats
from speculate.decoding.token import Token as Token
from speculate.decoding.window import Window as Window
from speculate.decoding.window import speculation as speculation
from speculate.errors import SpeculateError as SpeculateError
from speculate.proposers.draft_model import DraftModel as DraftModel
from speculate.proposers.mtp_chain import MTPChain as MTPChain
from speculate.sampling.options import Sampling as Sampling
from speculate.strategies.fixed import Fixed as Fixed
from speculate.strategies.off import Off as Off
