"""Standard output and error that may be closed, full, abandoned by their reader, or not UTF-8."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Final, TextIO, cast, final

from typing_extensions import override

from speculate.cli._console import write_error

LENIENT: Final = ("ignore", "replace", "backslashreplace", "xmlcharrefreplace", "namereplace")
"""Encoding error handlers that never raise."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replace standard output and error by streams that every command can write to.

    A character that the encoding does not have is written as `?`. If standard output cannot be
    written to, the command ends with an `OptionError`, or silently with status 141 if its reader
    has closed it. Output to a broken standard error is dropped, since it is not the result.
    """
    _reserve_descriptors()
    out = sys.stdout if _is_missing(sys.stdout) else _guarded(sys.stdout, _fail)
    closed = cast(io.BufferedWriter, _ClosedBuffer())
    missing = io.TextIOWrapper(closed, "utf-8", write_through=True)
    err = _guarded(missing if _is_missing(sys.stderr) else sys.stderr, _ignore)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            for stream in (out, err):
                if isinstance(stream, _GuardedStream):
                    stream.release()


def check_output() -> None:
    """Raise an `OptionError` without standard output, before a command does anything."""
    if _is_missing(sys.stdout):
        raise write_error("output", "standard output", _closed_error())


@final
class _GuardedStream(io.TextIOWrapper):
    """Writes to the buffer of another stream, which stays open; a handler gets the errors."""

    def __init__(self, stream: io.TextIOWrapper, failed: Callable[[Exception], None]) -> None:
        with suppress(OSError, ValueError):
            stream.flush()
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors if stream.errors in LENIENT else "replace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        # Keeps the other stream alive: it would close the buffer when it is collected.
        self._stream = stream
        self._failed = failed
        self._broken = False

    @contextmanager
    def _handled(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self._broken = True
            self._failed(error)

    @override
    def write(self, text: str, /) -> int:
        with self._handled():
            super().write(text)
        return len(text)

    @override
    def flush(self) -> None:
        with self._handled():
            super().flush()

    @override
    def isatty(self) -> bool:
        return self._stream.isatty()

    @override
    def close(self) -> None:
        """Does nothing: the other stream owns the buffer."""

    def release(self) -> None:
        """Empty the buffer. Otherwise Python would report unwritten output when it exits."""
        self._failed = _ignore
        self.flush()
        if self._broken:
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())


@final
class _ClosedBuffer(io.RawIOBase):
    """The buffer of a closed stream."""

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: object, /) -> int:
        raise _closed_error()


def _reserve_descriptors() -> None:
    """Open /dev/null on the descriptors of closed standard streams.

    Otherwise MLX would read a file that gets the descriptor of standard input as one that cannot
    be opened, and libraries would write their errors into a file that gets that of standard error.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # Standard error.
        continue
    os.close(opened)


def _guarded(stream: TextIO, failed: Callable[[Exception], None]) -> TextIO:
    """Guard a stream; one in memory is returned as it is."""
    return _GuardedStream(stream, failed) if isinstance(stream, io.TextIOWrapper) else stream


def _is_missing(stream: TextIO | None) -> bool:
    return stream is None or stream.closed


def _closed_error() -> OSError:
    return OSError(errno.EBADF, "it is closed")


def _fail(error: Exception) -> None:
    """Handle an error of standard output."""
    if isinstance(error, BrokenPipeError):
        raise SystemExit(128 + signal.SIGPIPE)  # As shells report it.
    raise write_error("output", "standard output", error) from error


def _ignore(error: Exception) -> None:
    """Handle an error of standard error: there is no place left to report it."""
