"""`check_architecture` passes every family, and notices each planted fault."""

import attrs
import numpy as np
import pytest
from oracles.models import FAMILIES, altered, tiny_file, tiny_model

from augury.blocks import Activation, FeedForward, Layer
from augury.interfaces import Architecture
from augury.lowering import Activate
from augury.plugins.architectures.decoder import Decoder
from augury.testing import ContractError, check_architecture
from augury.testing.architecture import ARCHITECTURE_CHECKS, ArchitectureSubject, _misfits
from augury.testing.toys import registry_with_toys


@pytest.mark.sample(6)
@pytest.mark.parametrize("check", ARCHITECTURE_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_contracts(family, check):
    check.run(ArchitectureSubject(registry_with_toys().find("architecture", family), tiny_file(f"{family}-dense")))


class Honest(Architecture):
    name = "qwen3"

    @classmethod
    def plans(cls, file):
        decoder = Decoder(file)
        rope = decoder.rope()
        layers = [
            cls.changed(Layer(decoder.attention(i, rope, has_head_norms=True), decoder.feed_forward(i)))
            for i in range(decoder.n_layers)
        ]
        return {"main": cls.finished(decoder.plan(layers))}

    @staticmethod
    def changed(layer):
        return layer

    @staticmethod
    def finished(plan):
        return plan


def test_an_honest_one_passes_with_a_path_of_its_file():
    check_architecture(Honest, tiny_model("qwen3-dense"))


def test_keys_that_nobody_reads_are_left_alone():
    class Counted(Honest):
        n = 0

        @classmethod
        def plans(cls, file):
            cls.n += 1
            return super().plans(file)

    counts = []
    for more in ({}, {"qwen3.what": 1}):
        Counted.n = 0
        check_architecture(Counted, altered(tiny_file("qwen3-dense"), metadata=more))
        counts.append(Counted.n)
    assert counts[0] == counts[1] > 100


def attention(**changes):
    """An architecture whose attention is another: `changes` are functions of the block."""

    class Changed(Honest):
        @staticmethod
        def changed(layer):
            values = {name: change(layer.mixer) for name, change in changes.items()}
            return attrs.evolve(layer, mixer=attrs.evolve(layer.mixer, **values))

    return Changed


def feed_forward(**changes):
    class Changed(Honest):
        @staticmethod
        def changed(layer):
            values = {name: change(layer.feed_forward) for name, change in changes.items()}
            return attrs.evolve(layer, feed_forward=attrs.evolve(layer.feed_forward, **values))

    return Changed


def whole(**changes):
    class Changed(Honest):
        @staticmethod
        def finished(plan):
            return attrs.evolve(plan, **{name: change(plan) for name, change in changes.items()})

    return Changed


class Nameless(Honest):
    name = "qwen4"


class Single(Honest):
    @classmethod
    def plans(cls, file):
        return super().plans(file)["main"]


class Mainless(Honest):
    @classmethod
    def plans(cls, file):
        return {"mtp": super().plans(file)["main"]}


class Trusting(Honest):
    """Takes the file's word for a number, and for a type."""

    @classmethod
    def plans(cls, file):
        plan = super().plans(file)["main"]
        return {"main": attrs.evolve(plan, n_ctx_train=int(file.metadata["qwen3.rope.freq_base"]) and plan.n_ctx_train)}


class Unchecked(Honest):
    """Computes with a number of the file, and does not look at what comes out."""

    @classmethod
    def plans(cls, file):
        plan = super().plans(file)["main"]
        scale = 1e300 * file.get("qwen3.rope.freq_base", float, 1.0)
        return {"main": attrs.evolve(plan, embedding=attrs.evolve(plan.embedding, scale=scale))}


class Guessing(Honest):
    """Names tensors without a look at the file."""

    @staticmethod
    def changed(layer):
        at = layer.mixer.q.weight.partition(".attn")[0]
        return attrs.evolve(
            layer, mixer=attrs.evolve(layer.mixer, o=attrs.evolve(layer.mixer.o, bias=f"{at}.attn_output.bias"))
        )


class Slipping(FeedForward):
    """Asks for an activation that there is not."""

    def lower(self, build):
        build.add(Activate, build.normalize(build.x, self.norm), Activation.SIGMOID)


@pytest.mark.parametrize(
    ("architecture", "told"),
    [
        (Nameless, "a file of 'qwen3'"),
        (Single, "gives a ModelPlan for each name"),
        (Mainless, "gives a ModelPlan for each name"),
        (Guessing, "tensor 'blk.0.attn_output.bias' is missing"),
        (attention(q=lambda block: attrs.evolve(block.q, n_out=8)), "tensor 'blk.0.attn_q.weight' has shape"),
        (
            attention(head_dim=lambda block: block.head_dim // 2),
            "layer 0, block Attention: the norm of heads of PrepareHeads has",
        ),
        (attention(n_kv_heads=lambda block: block.n_kv_heads + 1), "layer 0, block Attention: its operations keep rows of"),
        (attention(q_norm=lambda block: block.norm), "layer 0, block Attention: the norm of heads of PrepareHeads has"),
        (attention(post_norm=lambda block: block.q_norm), "layer 0, post_norm of Attention has"),
        (attention(o=lambda block: block.k), "layer 0, block Attention: y of Add has 64 values, expected 256"),
        (
            attention(rope=lambda block: attrs.evolve(block.rope, frequencies=np.ones(999))),
            "the turned part of heads of PrepareHeads has 1998 values",
        ),
        (attention(rope=lambda block: attrs.evolve(block.rope, magnitude=np.inf)), "a rope's magnitude is inf"),
        (attention(scale=lambda block: np.nan), "a scale of attention is nan"),
        (attention(window=lambda block: 0), "a window is 0"),
        (attention(norm=lambda block: attrs.evolve(block.norm, eps=0.0)), "eps of blk.0.attn_norm.weight is 0.0"),
        (feed_forward(up=lambda block: block.down), "layer 0, block FeedForward: x of blk.0.ffn_down.weight of Multiply has"),
        (feed_forward(down=lambda block: block.gate), "layer 0, block FeedForward: x of blk.0.ffn_gate.weight of Multiply has"),
        (
            whole(output=lambda plan: attrs.evolve(plan.output, norm=plan.layers[0].mixer.q_norm)),
            "block Output: the norm of x of",
        ),
        (
            whole(layers=lambda plan: (Layer(Slipping(**attrs.asdict(plan.layers[0].feed_forward, recurse=False))),)),
            "layer 0, Slipping cannot be lowered: AttributeError: ",
        ),
        (whole(n_ctx_train=lambda plan: 0), "n_ctx_train is 0"),
        (Trusting, "ModelFileError, or an UnsupportedError. Seen: "),
        (Unchecked, "the embedding's scale is"),
    ],
)
def test_a_planted_fault_is_noticed(architecture, told):
    with pytest.raises(ContractError) as found:
        check_architecture(architecture, tiny_file("qwen3-dense"))
    assert told in str(found.value)


def test_heads_that_share_no_kv_head_evenly_do_not_fit():
    block = Honest.plans(tiny_file("qwen3-dense"))["main"].layers[0].mixer
    sizes = {"q": 3, "k": 2, "v": 2}
    linears = {name: attrs.evolve(getattr(block, name), n_out=n * block.head_dim) for name, n in sizes.items()}
    o = attrs.evolve(block.o, n_in=3 * block.head_dim)
    odd = attrs.evolve(block, n_heads=3, n_kv_heads=2, o=o, **linears)
    assert not [*_misfits(block, block.norm.size)]
    assert [*_misfits(odd, block.norm.size)] == ["Attention has 3 heads, expected a multiple of its 2 KV heads"]
