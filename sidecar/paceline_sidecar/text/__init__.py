"""Between text and tokens: tokenizer, chat template, incremental decoding, stop strings."""
