"""Migration from cr_muons: its flags, and their counterparts in icestream."""
