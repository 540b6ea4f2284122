"""Health: limits on losses and gradients."""
