"""Multi-token-prediction heads on disk: find, read, convert and write them; load their trunk."""

from speculate.checkpoints.head import HeadFiles as HeadFiles
from speculate.checkpoints.head import HeadSummary as HeadSummary
from speculate.checkpoints.head import HeadTensors as HeadTensors
from speculate.checkpoints.head import find_head as find_head
from speculate.checkpoints.head import has_head as has_head
from speculate.checkpoints.head import read_head as read_head
from speculate.checkpoints.head import summarize_head as summarize_head
from speculate.checkpoints.norms import Convention as Convention
from speculate.checkpoints.norms import NormDecision as NormDecision
from speculate.checkpoints.quantization import Quantization as Quantization
from speculate.checkpoints.safetensors import TensorEntry as TensorEntry
from speculate.checkpoints.trunk import load_trunk as load_trunk
