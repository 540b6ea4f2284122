"""Environment variables of ranks. Pure."""

RANKS_FILE_VARIABLE = "_ICESTREAM_RANKS_FILE"
"""Variable set by `icestream run` for several trainers: file of the run directory in which they find each other."""

RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
    RANKS_FILE_VARIABLE,
)
"""Variables that torchrun sets. `icestream run` may inherit them from its own launcher: they are not for us."""
