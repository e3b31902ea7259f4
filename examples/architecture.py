"""A family of models of one's own: python examples/architecture.py MODEL, a llama under another name."""

import sys

from augury import Engine, Registry, hookimpl
from augury.model import Activation, Transformer


class Brook(Transformer):
    """A llama whose feed-forward layers are gated by GELU."""

    name = "brook"  # the file's general.architecture
    ffn_args = {"activation": Activation.GELU}  # noqa: RUF012


class Plugin:
    """A package offers its families by such a hook, see docs/write-an-architecture.md."""

    @hookimpl
    def augury_architectures(self):
        return (Brook,)


registry = Registry.discover()
registry.register(Plugin(), name="example")
with Engine.load(sys.argv[1], registry=registry) as engine:
    print(engine.info.architecture, engine.generate("The sea is", max_tokens=8, temperature=0).tokens)
