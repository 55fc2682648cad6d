"""Backbones: timm networks, pre-training of the small encoder, the feature cache."""

__all__ = ["backbone", "bundle_encoder", "feature_cache", "pretrain"]
