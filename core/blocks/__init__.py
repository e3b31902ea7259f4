"""The vocabulary of layers that a plan is written in.

An architecture turns a file's metadata into a `ModelPlan`; a backend computes plans and never hears a model's name. Weights are
referred to by tensor name. Shape letters are those of docs/notation.md: E embedding, H query heads, G KV heads, D head size.

A token's residual stream x (E,) goes through the blocks in order: `Embedding` makes it, the blocks of every `Layer` add to it,
`Output` turns it into logits. `parts` are the parts of blocks, `plan` puts layers together; the other
modules are the blocks.
"""

from augury.blocks.block import AllStreams, Block, Connection, PositionIndexer
from augury.blocks.drafting import AssistantInput, Convolved, DraftBlock, Injection, MtpInput
from augury.blocks.experts import MixtureOfExperts
from augury.blocks.latent import LatentAttention
from augury.blocks.plan import Layer, ModelPlan, MtpLayer
from augury.blocks.recurrent import GatedDeltaNet, KimiDeltaAttention, LightningAttention, Mamba, Mamba2, ShortConvolution
from augury.blocks.transformer import (
    Attention,
    Embedding,
    FeedForward,
    LayerInput,
    LayerInputs,
    Output,
    Projection,
    SecondStream,
)
from augury.lowering.parts import (
    Activation,
    BlockTensors,
    Convolution,
    Experts,
    GateKind,
    Gating,
    HasKernels,
    HasParts,
    Integers,
    Linear,
    LinearRecurrence,
    Matrices,
    Norm,
    NormKind,
    Preparation,
    Rope,
    Router,
    RowSelection,
    SequenceState,
    Temperature,
    Vector,
)

__all__ = [
    "Activation",
    "AllStreams",
    "AssistantInput",
    "Attention",
    "Block",
    "BlockTensors",
    "Connection",
    "Convolution",
    "Convolved",
    "DraftBlock",
    "Embedding",
    "Experts",
    "FeedForward",
    "GateKind",
    "GatedDeltaNet",
    "Gating",
    "HasKernels",
    "HasParts",
    "Injection",
    "Integers",
    "KimiDeltaAttention",
    "LatentAttention",
    "Layer",
    "LayerInput",
    "LayerInputs",
    "LightningAttention",
    "Linear",
    "LinearRecurrence",
    "Mamba",
    "Mamba2",
    "Matrices",
    "MixtureOfExperts",
    "ModelPlan",
    "MtpInput",
    "MtpLayer",
    "Norm",
    "NormKind",
    "Output",
    "PositionIndexer",
    "Preparation",
    "Projection",
    "Rope",
    "Router",
    "RowSelection",
    "SecondStream",
    "SequenceState",
    "ShortConvolution",
    "Temperature",
    "Vector",
]
