"""Devices, model sizes, and the step times that follow from both. No torch.

The engine's prior, the planner and the simulator all read them here.
"""
