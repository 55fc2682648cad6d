"""Backbones: timm networks, clips, pre-training of the small encoder, the feature cache."""

__all__ = ["backbone", "bundle_encoder", "clip", "feature_cache", "pretrain"]
