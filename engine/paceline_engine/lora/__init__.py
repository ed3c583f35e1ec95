"""LoRA adapters: which are loaded, and where their weights lie."""
