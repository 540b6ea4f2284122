"""A trained model for programs that know nothing of icestream."""
