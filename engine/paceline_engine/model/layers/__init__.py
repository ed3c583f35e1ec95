"""The parts that a decoder layer is made of."""
