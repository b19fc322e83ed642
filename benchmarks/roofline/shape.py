"""Bytes and operations of a forward, from the shape of a model."""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.frozen
class Shape:
    """A model of attention layers, recurrent layers, and feed-forward parts or experts.

    Attributes:
        hidden: Width.
        vocabulary: Rows of the output matrix.
        attention: Layers with attention.
        recurrent: Gated DeltaNet layers.
        heads: Query heads of an attention layer.
        kv_heads: Its key-value heads.
        head_width: Of its heads.
        gated: Whether its query projection is of double width, as in Qwen3.5.
        inner: Width of a feed-forward part, or of an expert.
        experts: Routed experts of a layer; 0 for a feed-forward part without.
        chosen: Experts that a token goes through.
        shared: Experts that every token goes through besides.
        key_heads: Of a recurrent layer.
        value_heads: Likewise.
        state_width: Of keys and values of a recurrent layer.
        window: Rows that every other attention layer sees; 0 where all see everything.
        bits: Of a weight, scales included.
        expert_bits: Of a weight of a routed expert.
        head: Whether there is a multi-token-prediction head of one attention layer.
    """

    hidden: int
    vocabulary: int
    attention: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    recurrent: int = 0
    gated: bool = False
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    key_heads: int = 0
    value_heads: int = 0
    state_width: int = 0
    window: int = 0
    bits: float = 4.5
    expert_bits: float = 4.5
    head: bool = False

    @property
    def expert(self) -> int:
        """Weights of one expert, or of a feed-forward part: gate, up and down."""
        return 3 * self.hidden * self.inner

    @property
    def attention_layer(self) -> int:
        """Weights of queries, keys, values and the output of an attention layer."""
        queries = self.heads * self.head_width
        rows = (2 if self.gated else 1) * queries + 2 * self.kv_heads * self.head_width
        return self.hidden * (rows + queries)

    @property
    def recurrent_layer(self) -> int:
        """Weights of a Gated DeltaNet: queries, keys, values, gates and the output."""
        keys, values = self.key_heads * self.state_width, self.value_heads * self.state_width
        return self.hidden * (2 * keys + 2 * values + 2 * self.value_heads + values)

    @property
    def always(self) -> int:
        """Weights that every forward reads, the output matrix included, experts left out."""
        per_layer = self.hidden * self.experts + self.expert * (self.shared if self.experts else 1)
        layers = self.attention + self.recurrent
        mixing = self.attention * self.attention_layer + self.recurrent * self.recurrent_layer
        return mixing + layers * per_layer + self.hidden * self.vocabulary

    @property
    def of_head(self) -> int:
        """Weights of one step of the head that are read always: `fc`, a layer, the output."""
        ungrouped = self.hidden * self.experts + self.expert * (self.shared if self.experts else 1)
        return 2 * self.hidden**2 + self.attention_layer + ungrouped + self.hidden * self.vocabulary

    def distinct(self, rows: int) -> float:
        """Experts of a layer that some row needs.

        `E * (1 - (1 - k / E) ** T)`, the expectation for rows that choose `k` of `E` experts
        evenly and independently. Neighbouring tokens choose more alike, so it is rather fewer.
        """
        if not self.experts:
            return 0.0
        return self.experts * (1 - (1 - self.chosen / self.experts) ** rows)

    def weight_bytes(self, rows: int) -> float:
        """Bytes of the weights that a forward of so many rows reads, each once."""
        layers = self.attention + self.recurrent
        experts = layers * self.distinct(rows) * self.expert
        return self.always * self.bits / 8 + experts * self.expert_bits / 8

    def cache_bytes(self, context: int) -> float:
        """Bytes of caches that a forward reads: keys and values in 16 bits, states in 32.

        A state is read once and written once, whatever the number of rows.
        """
        seen = min(context, self.window) if self.window else context
        rows = self.attention * (context + seen) / 2
        states = self.recurrent * self.value_heads * self.state_width**2
        return rows * 2 * self.kv_heads * self.head_width * 2 + 2 * states * 4

    def operations(self, rows: int, context: int) -> float:
        """Multiplications and additions of a forward: two for each weight and row.

        Attention over the context takes four for each query head, its width and position.
        """
        layers = self.attention + self.recurrent
        weights = self.always + layers * self.chosen * self.expert * bool(self.experts)
        seen = min(context, self.window) if self.window else context
        positions = self.attention * (context + seen) / 2
        return rows * (2 * weights + 4 * self.heads * self.head_width * positions)

    def head_bytes(self, context: int) -> float:
        """Bytes that a step of the head reads for one row."""
        rows = 2 * self.kv_heads * self.head_width * 2 * context
        return (
            self.of_head * self.bits / 8
            + self.distinct(1) * self.expert * self.expert_bits / 8
            + rows
        )
