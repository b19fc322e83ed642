"""Standard output and error as they may be: closed, full, given up by a reader, not in UTF-8."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Final, TextIO, cast, final

from typing_extensions import override

from speculate.cli.writing import unwritable

STANDARD_ERROR: Final = 2
"""Its number, the last of the three."""

READER_LEFT: Final = 141
"""Exit status after a reader has left: 128 and the number of SIGPIPE, as shells show it."""

LENIENT: Final = ("ignore", "replace", "backslashreplace", "xmlcharrefreplace", "namereplace")
"""Ways to write a character that an encoding does not have. All others raise an error."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """Standard output and error that every command can write to, in place of the process's own.

    A character that the encoding does not have is written as `?`. Standard output that cannot be
    written to ends the command, with an `OptionError`, or, if its reader has left, quietly with
    status 141; what goes to standard error is dropped instead, since it is not the result. Where
    there is no standard output, `sys.stdout` stays `None`: see `check_output`.
    """
    _fill_descriptors()
    out = sys.stdout if _missing(sys.stdout) else _guarded(sys.stdout, _end)
    err = _guarded(_nowhere() if _missing(sys.stderr) else sys.stderr, _drop)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            for stream in (out, err):
                if isinstance(stream, _Guarded):
                    stream.release()


def check_output() -> None:
    """See that there is a standard output, before a command does anything.

    Raises:
        OptionError: There is none.
    """
    if _missing(sys.stdout):
        raise unwritable("output", "standard output", _closed())


@final
class _Guarded(io.TextIOWrapper):
    """Writes to the bytes of another stream, and says what becomes of errors.

    Args:
        stream: The other one. It stays open, and its settings stay as they are.
        failed: Called with what the system said when something could not be written.
    """

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
        self._stream = stream  # which would close its bytes if nobody held it
        self._failed = failed
        self._broken = False

    @override
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except (OSError, ValueError) as error:
            self._broken = True
            self._failed(error)
            return len(text)

    @override
    def flush(self) -> None:
        try:
            super().flush()
        except (OSError, ValueError) as error:
            self._broken = True
            self._failed(error)

    @override
    def isatty(self) -> bool:
        return self._stream.isatty()

    @override
    def close(self) -> None:
        """Nothing: the bytes are the other stream's."""

    def release(self) -> None:
        """Leave nothing behind in a buffer: Python would complain of it when it exits."""
        try:
            super().flush()
        except (OSError, ValueError):
            self._broken = True
        if self._broken:
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())


@final
class _Nowhere(io.RawIOBase):
    """The bytes of a stream that is closed."""

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: object, /) -> int:
        raise _closed()


def _fill_descriptors() -> None:
    """Keep files from the numbers of closed streams.

    MLX takes the number of standard input for a file that cannot be opened, and what libraries
    write to standard error would go into the file that has its number.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        continue
    os.close(opened)


def _guarded(stream: TextIO, failed: Callable[[Exception], None]) -> TextIO:
    """The stream under guard; one that is in memory is taken as it is."""
    return _Guarded(stream, failed) if isinstance(stream, io.TextIOWrapper) else stream


def _nowhere() -> TextIO:
    return io.TextIOWrapper(cast(io.BufferedWriter, _Nowhere()), "utf-8", write_through=True)


def _missing(stream: TextIO | None) -> bool:
    return stream is None or stream.closed


def _closed() -> OSError:
    return OSError(errno.EBADF, "it is closed")


def _end(error: Exception) -> None:
    """What becomes of standard output that cannot be written to."""
    if isinstance(error, BrokenPipeError):
        raise SystemExit(READER_LEFT)
    raise unwritable("output", "standard output", error) from error


def _drop(error: Exception) -> None:
    """What becomes of standard error that cannot be written to: nobody can be told."""
