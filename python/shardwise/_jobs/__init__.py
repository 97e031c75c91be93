"""Manages the checkpoints of a training job: folders of steps, saves on threads, tiers."""
