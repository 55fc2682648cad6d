"""Personalisation methods: ICIIA, TAPER, and parameter-efficient modules for federated learning."""
