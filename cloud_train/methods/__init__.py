"""Personalisation methods: ICIIA, TAPER, and parameter-efficient modules for federated learning."""

__all__ = ["iciia", "peft", "taper"]
