"""How new images come to a service's pods: on one pod first, then on all, or back."""
