"""The vocabulary of layers that a plan is written in.

An architecture turns a file's metadata into a `ModelPlan`; a backend computes plans and never hears a model's name. Weights are
referred to by tensor name. Shape letters are those of docs/notation.md: E embedding, H query heads, G KV heads, D head size.

A token's residual stream x (E,) goes through the blocks in order: `Embedding` makes it, the blocks of every `Layer` add to it,
`Output` turns it into logits. `parts` are the parts of blocks, `plan` puts layers together; the other
modules are the blocks.
"""

from augury.blocks.block import (
    AllStreams as AllStreams,
    Block as Block,
    Connection as Connection,
    PositionIndexer as PositionIndexer,
)
from augury.blocks.drafting import (
    AssistantInput as AssistantInput,
    Convolved as Convolved,
    DraftBlock as DraftBlock,
    Injection as Injection,
    MtpInput as MtpInput,
)
from augury.blocks.latent import LatentAttention as LatentAttention
from augury.blocks.plan import Layer as Layer, ModelPlan as ModelPlan, MtpLayer as MtpLayer
from augury.blocks.recurrent import (
    GatedDeltaNet as GatedDeltaNet,
    KimiDeltaAttention as KimiDeltaAttention,
    LightningAttention as LightningAttention,
    Mamba as Mamba,
    Mamba2 as Mamba2,
    ShortConvolution as ShortConvolution,
)
from augury.blocks.transformer import (
    Attention as Attention,
    Embedding as Embedding,
    FeedForward as FeedForward,
    LayerInput as LayerInput,
    LayerInputs as LayerInputs,
    MixtureOfExperts as MixtureOfExperts,
    Output as Output,
    Projection as Projection,
    SecondStream as SecondStream,
)
from augury.lowering.operation import HasKernels as HasKernels
from augury.lowering.parts import (
    Activation as Activation,
    BlockTensors as BlockTensors,
    Convolution as Convolution,
    Experts as Experts,
    GateKind as GateKind,
    Gating as Gating,
    HasParts as HasParts,
    Integers as Integers,
    Linear as Linear,
    LinearRecurrence as LinearRecurrence,
    Matrices as Matrices,
    Norm as Norm,
    NormKind as NormKind,
    Preparation as Preparation,
    Rope as Rope,
    Router as Router,
    RowSelection as RowSelection,
    SequenceState as SequenceState,
    Temperature as Temperature,
    Vector as Vector,
)

globals()["__all__"] = [name for name, each in vars().items() if name[0] != "_" and type(each).__name__ != "module"]
