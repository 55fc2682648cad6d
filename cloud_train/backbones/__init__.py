"""Backbones: timm networks, pre-training of the small encoder, the feature cache."""
