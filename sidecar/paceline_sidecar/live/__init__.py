"""The live page of this pod: measure -> remember -> lay out -> stream."""
