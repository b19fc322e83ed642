"""Heads on disk: finding them, reading them, and loading the trunk beside them."""

from speculate.checkpoints.find import HeadFiles as HeadFiles
from speculate.checkpoints.find import find_head as find_head
from speculate.checkpoints.find import has_head as has_head
from speculate.checkpoints.header import TensorEntry as TensorEntry
from speculate.checkpoints.norms import Convention as Convention
from speculate.checkpoints.norms import NormDecision as NormDecision
from speculate.checkpoints.peek import HeadSummary as HeadSummary
from speculate.checkpoints.peek import peek_head as peek_head
from speculate.checkpoints.quantization import Quantization as Quantization
from speculate.checkpoints.read import HeadTensors as HeadTensors
from speculate.checkpoints.read import read_head as read_head
from speculate.checkpoints.trunk import load_trunk as load_trunk
