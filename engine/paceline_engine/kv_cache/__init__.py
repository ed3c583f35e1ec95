"""The paged KV cache: its blocks, their owners, what prompts can share, and the memory."""
