"""From a prompt to text: what `mlx_lm.generate` does, on this package's decoder."""

from speculate.text.generate import DecoderOptions as DecoderOptions
from speculate.text.generate import generate as generate
from speculate.text.generate import stream_generate as stream_generate
