"""Parameter-efficient modules: prompts, prefixes, adapters, the prompt generator, FedCLIP's adapter."""
