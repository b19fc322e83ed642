"""Run as a program: what stock models compute, with speculate in the process or without it.

Arguments: a file to write to, and `plain`, or `used` to adapt and use the models before.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from tests.support import tiny

FAMILIES = (*tiny.FAMILIES, "lfm2")
PROMPT = (5, 9, 12, 3, 7, 1, 40, 22, 8, 61)


def builders() -> dict[str, Any]:
    return {name: {**tiny.FAMILIES, **tiny.MORE}[name] for name in FAMILIES}


def rows(model: Any, cache: list[Any] | None = None) -> mx.array:
    """Log-probabilities of 12 steps of mlx-lm's own loop."""
    steps = generate_step(mx.array(PROMPT), model, max_tokens=12, prompt_cache=cache)
    return mx.stack([logprobs for _, logprobs in steps])


def attributes(modules: Sequence[str]) -> dict[str, object]:
    """Every function, class and attribute of the modules and classes of mlx and mlx_lm."""
    found: dict[str, object] = {}
    for name in modules:
        module = sys.modules[name]
        if name.partition(".")[0] not in ("mlx", "mlx_lm") or not isinstance(module, ModuleType):
            continue
        for key, value in vars(module).items():
            if isinstance(value, ModuleType) or key == "__warningregistry__":
                continue
            found[f"{name}.{key}"] = value
            if inspect.isclass(value) and value.__module__ == name:
                found.update({f"{name}.{key}.{k}": v for k, v in vars(value).items()})
    # Python creates annotations when they are first read.
    return {name: value for name, value in found.items() if "__annot" not in name}


def functions(found: dict[str, object]) -> dict[str, object]:
    """The code that each function runs, which could be changed in place."""
    return {name: f.__code__ for name, f in found.items() if isinstance(f, FunctionType)}


def module_attributes(model: Any) -> dict[str, object]:
    """What hangs on the instances of a model's modules."""
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        found[f"{name} class"] = type(module)
        found.update({f"{name}.{key}": value for key, value in vars(module).items()})
        found.update({f"{name}[{key}]": value for key, value in module.items()})
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names that are other objects now, or gone, or new."""
    names = before.keys() | after.keys()
    return sorted(n for n in names if before.get(n, names) is not after.get(n, names))


def use(models: dict[str, Any]) -> None:
    """Whatever speculate does with models: forwards, windows, a decoder."""
    import speculate
    from tests.support.cache_contents import adapted, batch

    for model in models.values():
        driven = adapted(model)
        caches = driven.make_cache()
        driven.forward(batch(PROMPT), caches)
        with speculate.speculation(caches) as window:
            mx.eval(driven.forward(batch(PROMPT[:4]), caches).logits)
            window.keep(2)
            mx.eval(driven.forward(batch(PROMPT[:1]), caches).logits)
        assert len([*speculate.Decoder(driven).generate(PROMPT, max_tokens=4)]) == 4
        stock = make_prompt_cache(model)
        mx.eval(driven.forward(batch(PROMPT), stock).logits)
        adopted = driven.adopt(stock)
        for layer in adopted:
            layer.release()


def main(path: str, mode: str) -> None:
    models = {name: build() for name, build in builders().items()}
    made = {}
    if mode == "plain":
        made = {f"{name} plain": rows(model) for name, model in models.items()}
    else:
        assert not any(name.partition(".")[0] == "speculate" for name in sys.modules)
        modules = tuple(sys.modules)  # one that is imported only later has not changed
        everything = attributes(modules)
        codes = functions(everything)
        instances = {name: module_attributes(model) for name, model in models.items()}
        use(models)
        gc.collect()
        after = attributes(modules)
        print(*changed(everything, after))
        print(*changed(codes, functions(after)))
        for name, model in models.items():
            print(*changed(instances[name], module_attributes(model)))
        made = {f"{name} same model": rows(model) for name, model in models.items()}
        made |= {f"{name} another": rows(build()) for name, build in builders().items()}
    mx.save_safetensors(path, made)
    assert mode == "used" or "speculate" not in sys.modules


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
