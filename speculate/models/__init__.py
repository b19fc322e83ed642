"""Adapters: one model family a file.

| file | drives |
|---|---|
| `adapter` | llama, Qwen2, Qwen3, LFM2 (`DenseAdapter`), and the base of every adapter |
| `gpt_oss` | gpt-oss: sliding windows, experts |
| `qwen3_5` | Qwen3.5: Gated DeltaNet, dense or with experts |
| `qwen3_next` | Qwen3-Next: Gated DeltaNet with fused projections, experts |

`registry` maps an architecture to its adapter, and compares adapters of other packages with
mlx-lm's model. `HybridAdapter` of `adapter` and `gated_delta` are shared by the two Qwen families,
`mtp` is their multi-token-prediction head, `stock` describes mlx-lm's own classes. `dense` is an
import path that other packages name in their metadata.
"""
