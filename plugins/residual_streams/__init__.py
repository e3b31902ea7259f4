"""Connections of blocks with several residual streams, and their kernels: hyper-connections, and means of earlier streams."""

from augury.plugins.residual_streams.connections import AttentionResidual, GatedHyperConnection, HyperConnection, StreamMean

__all__ = ["AttentionResidual", "GatedHyperConnection", "HyperConnection", "StreamMean"]
