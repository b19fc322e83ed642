"""What can be told apart without looking at its numbers."""

from typing_extensions import Protocol, runtime_checkable


@runtime_checkable
class Fingerprinted(Protocol):
    """A model, a head or a proposer whose costs may be remembered under a name."""

    @property
    def fingerprint(self) -> str:
        """The same in every process for weights of the same shapes and formats."""
