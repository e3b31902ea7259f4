"""For architectures: blocks and operations, model files, and the common parts of most decoders."""

from augury.blocks import *
from augury.files.gguf import BORROWED as BORROWED, ModelFile as ModelFile, Tensor as Tensor, mapped as mapped
from augury.files.gguf_writer import (
    EPSILON as EPSILON,
    LlamaSizes as LlamaSizes,
    add_value as add_value,
    add_weights as add_weights,
    gguf_file as gguf_file,
)
from augury.files.mtp_file import stored_mtp as stored_mtp
from augury.files.quantized import NO_QUANT as NO_QUANT, quant_like as quant_like
from augury.files.tensor_type import TensorType as TensorType
from augury.hookspecs import hookimpl as hookimpl
from augury.interfaces import Architecture as Architecture
from augury.lowering import *
from augury.plugins.architectures.decoder import Decoder as Decoder
from augury.plugins.architectures.experts import limited_feed_forward as limited_feed_forward, mixture as mixture
from augury.plugins.architectures.linear_attention import Qwen35 as Qwen35, gated_attention as gated_attention
from augury.plugins.architectures.rope import MAX_POSITIONS as MAX_POSITIONS, base_of as base_of, local_size as local_size
from augury.plugins.architectures.streams import HyperConnected as HyperConnected, mixed_streams as mixed_streams
from augury.plugins.architectures.transformer import Transformer as Transformer
from augury.plugins.pooling import PoolIndexer as PoolIndexer, Pooling as Pooling
from augury.plugins.residual_streams import (
    AttentionResidual as AttentionResidual,
    GatedHyperConnection as GatedHyperConnection,
    HyperConnection as HyperConnection,
    StreamMean as StreamMean,
)
