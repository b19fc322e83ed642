"""Errors and warnings of this package. Every error it raises derives from `SpeculateError`."""


class SpeculateError(Exception):
    """Base class of every error that `speculate` raises."""


class OptionError(SpeculateError, ValueError):
    """An option has an invalid value or conflicts with another option."""


class PromptError(SpeculateError, ValueError):
    """The prompt is empty or has an id outside the model's vocabulary."""


class RewindError(SpeculateError):
    """A rewind reaches further than was recorded. Nothing was changed."""


class CannotRewindError(SpeculateError):
    """A layer's cache cannot be rewound."""


class CacheOnLoanError(SpeculateError):
    """A prompt cache was used while a running generator holds its arrays."""


class DecoderBusyError(SpeculateError):
    """A decoder was called while another of its generators is running, or inside a step."""


class UnsupportedModelError(SpeculateError):
    """No adapter supports the model or its configuration."""


class VocabularyMismatchError(SpeculateError, ValueError):
    """A draft model and its target do not share a vocabulary."""


class CheckpointError(SpeculateError):
    """A folder or file is not a usable checkpoint."""


class HeadNotFoundError(CheckpointError):
    """A checkpoint has no multi-token-prediction head."""


class StaleIndexError(HeadNotFoundError):
    """A checkpoint's index lists a head's tensors, but its files hold none of them."""


class HeadMismatchError(CheckpointError):
    """A head's tensors do not fit the model."""


class SpeculateWarning(UserWarning):
    """A checkpoint has a flaw that does not prevent its use."""
