"""What every test needs: the CPU, and a cache folder that is not the user's."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

# Equal bits are asked for, and only the CPU gives a row the same ones in every block. As early as
# this, since mlx-lm makes its stream for the device that is the default when it is imported. Of
# all threads; other processes are started by `tests.support.on_cpu`. What `tests/gpu` does is
# its own.
mx.set_default_device(mx.cpu)


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
