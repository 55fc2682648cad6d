"""Parameter-efficient modules: prompts, prefixes, adapters, the prompt generator, FedCLIP's adapter."""

__all__ = ["adapters", "delegated_vit", "fedclip_adapter", "prefixes", "prompt_generator", "prompts"]
