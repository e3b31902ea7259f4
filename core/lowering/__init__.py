"""How blocks are computed: operations, and the builder that a block writes them on (`Block.lower`)."""

from augury.lowering.attention import (
    Attend as Attend,
    Choose as Choose,
    ChooseByHead as ChooseByHead,
    MultiplyHeads as MultiplyHeads,
    PositionChoice as PositionChoice,
    PrepareHeads as PrepareHeads,
    PrepareLatents as PrepareLatents,
)
from augury.lowering.builder import Builder as Builder
from augury.lowering.emitters import (
    ConnectionEmitter as ConnectionEmitter,
    Emitters as Emitters,
    OperationEmitter as OperationEmitter,
    Scope as Scope,
)
from augury.lowering.operation import (
    CachedRows as CachedRows,
    Operation as Operation,
    Value as Value,
    makes as makes,
    source_key as source_key,
)
from augury.lowering.operations import (
    Activate as Activate,
    Add as Add,
    AddStream as AddStream,
    AddWeighed as AddWeighed,
    ComputeLogits as ComputeLogits,
    Constant as Constant,
    Convolve as Convolve,
    ConvolveBlock as ConvolveBlock,
    Decay as Decay,
    DecayByKey as DecayByKey,
    FeedExperts as FeedExperts,
    Gate as Gate,
    InitStreams as InitStreams,
    Join as Join,
    LookUp as LookUp,
    Multiply as Multiply,
    Normalize as Normalize,
    ReadHidden as ReadHidden,
    ReadInput as ReadInput,
    ReadTokens as ReadTokens,
    Recur as Recur,
    Route as Route,
    Routes as Routes,
    ScaleToLength as ScaleToLength,
    SetLayerInputs as SetLayerInputs,
)

globals()["__all__"] = [name for name, each in vars().items() if name[0] != "_" and type(each).__name__ != "module"]
