"""Every error this package raises on purpose, all of them `SpeculateError`, and its warning."""


class SpeculateError(Exception):
    """Base of every error raised by `speculate`."""


class OptionError(SpeculateError, ValueError):
    """An option has a value that cannot be used, or that clashes with another one."""


class PromptError(SpeculateError, ValueError):
    """The prompt is empty, or holds an id that the model does not have."""


class RewindError(SpeculateError):
    """A cache was asked to take back more than it recorded. Nothing was changed."""


class CannotRewindError(SpeculateError):
    """A model or a draft has a layer whose cache cannot take tokens back."""


class CacheOnLoanError(SpeculateError):
    """A prompt cache was read while a running generator holds its arrays."""


class DecoderBusyError(SpeculateError):
    """A decoder was asked for a second text while the first is still running."""


class UnsupportedModelError(SpeculateError):
    """No adapter is known for a model, or the model is set up in a way none supports."""


class VocabularyMismatchError(SpeculateError, ValueError):
    """A draft model and its target do not share a vocabulary."""


class CheckpointError(SpeculateError):
    """A folder or a file on disk cannot be used as a checkpoint."""


class HeadNotFoundError(CheckpointError):
    """A checkpoint holds no multi-token-prediction head."""


class StaleIndexError(HeadNotFoundError):
    """A checkpoint's index names a head's tensors, and the files hold none of them."""


class HeadMismatchError(CheckpointError):
    """A head's tensors do not fit the model that it should be attached to."""


class SpeculateWarning(UserWarning):
    """A checkpoint is odd in a way that does not keep it from being used."""
