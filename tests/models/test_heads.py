"""Every head, against the contracts of the conformance kit."""

from __future__ import annotations

from typing import ClassVar

from speculate.protocols import MTPHead
from speculate.testing import HeadTests, ToyHead
from speculate.testing.toy import WIDTH
from tests.support import tiny
from tests.support.mtp_heads import with_head


class TestToyHead(HeadTests):
    width = WIDTH
    vocab_size = 64

    def make_head(self) -> MTPHead:
        return ToyHead()


class Qwen(HeadTests):
    """A head of one of the families that have one."""

    width = 32
    vocab_size = tiny.VOCAB
    family: ClassVar[str]

    def make_head(self) -> MTPHead:
        head = with_head(self.family).model.head
        assert head is not None
        return head


class TestQwen35(Qwen):
    family = "qwen3_5"


class TestQwen3Next(Qwen):
    family = "qwen3_next"


class TestQwen35Experts(Qwen):
    family = "qwen3_5_moe"
