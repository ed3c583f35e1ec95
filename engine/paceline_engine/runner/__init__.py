"""From a batch to its next tokens: prepare the tensors, run the decoder, sample."""
