"""gpt-oss: sliding windows and full attention in turn, attention sinks, experts.

Windows. Layers alternate between attention over the last 128 tokens and full attention, as the
config's `layer_types` says. `RewindableRotatingKVCache` stores a window in time order, and 64 rows
more while speculating, so that a rejected draft is trimmed exactly even after the window has
wrapped; mlx-lm's ring is not trimmed then. The model chooses its caches itself, so `max_kv_size`
does not apply.

Rounding. A ring and a buffer in time order sum the same rows in another order. Logits of a wrapped
window therefore agree with those over mlx-lm's own cache up to rounding, not bit for bit.

Sinks. The model's sinks are one learned number a head, added to the denominator of the softmax:
weights, of which nothing is rolled back. The sinks of `speculate.backends.rotating` are something
else: the first rows of a sequence, which `max_kv_size` keeps.

Experts. A router picks 4 experts a token, of 32 (20b) or 128 (120b). A block of `T` tokens reads up
to `4 T` experts a layer, so that a draft costs more memory traffic than in a dense model. Rounding
may flip two nearly tied router scores, and with them the logits of a token by more than rounding.

Drafts. No multi-token-prediction head is published for gpt-oss, and `load_mtp_head` refuses the
family. A `DraftModel` has to share the vocabulary of 201,088 tokens, as gpt-oss-20b does with
gpt-oss-120b.
"""

from __future__ import annotations

from speculate.models.adapter import DenseAdapter

GptOssAdapter = DenseAdapter
"""Drives `gpt_oss`. Its forward is the dense one: all that is special is in weights and caches."""
