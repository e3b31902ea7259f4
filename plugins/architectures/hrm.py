"""HRM-Text: two stacks of layers that are gone through in turns."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from augury.blocks import Layer, ModelPlan, SecondStream
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import gates

_MOST_LAYERS = 512  # that llama.cpp takes


class HrmText(Architecture):
    """Low layers several times, then high ones, and all of it again, each with a residual stream of its own.

    Each stack is given the sum of both streams. Norms have no weights, and attention's mix has gates.
    """

    name = "hrm_text"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        keys, rope, norm = decoder.keys, decoder.rope(), decoder.plain_norm()
        n_stack = keys.count("hrm.layers_per_stack", most=_MOST_LAYERS)
        n_high, n_low = (keys.count(f"hrm.{which}_cycles", most=_MOST_LAYERS) for which in "hl")
        if decoder.n_layers != n_stack * n_high * (n_low + 1):
            keys.fail("block_count", decoder.n_layers, f"{n_stack * n_high * (n_low + 1)}, which layers and cycles make")
        stored = []
        for layer in range(2 * n_stack):
            attention = decoder.attention(layer, rope, norm=norm, gate=gates(decoder, layer))
            stored.append(Layer(attention, decoder.feed_forward(layer, norm=norm)))
        low, high = stored[:n_stack], stored[n_stack:]
        first = decoder.vector("hrm.z_l_init", decoder.n_embd)
        layers: list[Layer] = []
        for _ in range(n_high):
            for cycle in range(n_low + 1):
                stack = [decoder.again(layer, len(layers) + i) for i, layer in enumerate(low if cycle < n_low else high)]
                other = SecondStream(swaps=not 0 < cycle < n_low) if layers else SecondStream(first=first)
                stack[0] = attrs.evolve(stack[0], mixer=(other, *stack[0].mixers))
                stack[-1] = attrs.evolve(stack[-1], norm=norm)
                layers += stack
        layers[-1] = attrs.evolve(layers[-1], norm=None)  # the output's norm does it
        scale = keys.number("embedding_scale", 0.0) or 1.0
        return {"main": decoder.plan(layers, output=decoder.output(norm=norm), scale=scale)}
