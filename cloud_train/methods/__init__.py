"""The personalisation methods, each once, as plain PyTorch."""
