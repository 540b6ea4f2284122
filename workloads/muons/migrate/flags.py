"""The 77 flags of cr_muons' `training/train.py` (commit bdff8ed), in its own order, and those of earlier versions.

`icestream migrate` and the table of docs/how-to/migrate.md are made from this list.
"""

from __future__ import annotations

from workloads.muons.migrate.old_flag import OldFlag, number, switch, text, whole

WGAN = "trainer.wgan"
_COMPILE = f"{WGAN}.compile"
_MODES = {"off": False, "default": True, "reduce-overhead": True, "max-autotune": True}
_ONE_COMPILE = "one switch for generator and critic, without modes: the penalty is no double backward here"
_ACTS_OTHERWISE = (
    "the gap is compared with its own running median (`trainer.wgan.adaptive.weak_gap`), not with a number"
)
_CHUNKS = "a microbatch is bounded by `stream.max_particles`, and microbatches are accumulated to `stream.batch_events`"

FLAGS: tuple[OldFlag, ...] = (
    OldFlag("--infiles", "texts", ("input",), option="`-i`", note="one each; quote globs"),
    switch("--use-hf", note="there is one reader: Arrow record batches"),
    switch("--parquet-batch-reader", note="there is one reader: Arrow record batches"),
    switch("--shuffle", "stream.shuffle", note="on by default: files, row groups and events are permuted"),
    whole("--shuffle-seed", "seed", note="also the seed of the weights"),
    whole("--prefetch-batches", note="units are always decoded ahead, as far as `stream.slots` allows"),
    whole(
        "--num-workers",
        "local.max_decoders",
        zero_is_off=True,
        option="`--decoders auto`",
        note="separate processes, as many as are needed, at most this number",
    ),
    whole("--prefetch-factor", note="each decoder works ahead by itself (`decoder.credit`)"),
    switch("--persistent-workers", note="decoders live as long as the run"),
    switch("--pin-memory", note="shared memory is page-locked wherever there is a GPU"),
    whole("--max-muons-per-batch", "stream.max_particles", zero_is_off=True, note="bound of a microbatch; 0 is 65,536"),
    whole(
        "--max-muons-per-event",
        "stream.max_particles_per_event",
        zero_is_off=True,
        note="larger events go to `outliers/`, whole, and are never read into a batch",
    ),
    whole(
        "--preflight-muon-threshold",
        "stream.max_particles",
        zero_is_off=True,
        note="wins over `--max-muons-per-batch`, as before",
    ),
    whole("--cuda-empty-cache-interval", note="memory is bounded, and its segments expand: reserved memory stays flat"),
    whole("--cuda-empty-cache-threshold-mib", note="as `--cuda-empty-cache-interval`"),
    switch(
        "--drop-empty-events",
        "stream.drop_empty",
        note="better left out: the count head learns P(N = 0) from empty events, and the critic skips them anyway",
    ),
    text("--outliers-dir", option="`RUN_DIR/outliers/`", note="in the input's schema: usable as input"),
    whole(
        "--batch-size",
        "stream.batch_events",
        note="at least so many events in an optimiser step, of all processes: `migrate` multiplies",
    ),
    whole("--multi-file-shuffle", "stream.block_files", zero_is_off=True, note="row groups and events are mixed too"),
    whole("--critic-steps", f"{WGAN}.critic_steps", note="with `--adaptive-critic` also the fewest"),
    whole("--critic-step", alias_of="--critic-steps"),
    switch(
        "--adaptive-critic",
        f"{WGAN}.adaptive.enabled",
        note="acts the other way round: a small gap means that the critic is too weak",
    ),
    number("--w-ma-low", note=_ACTS_OTHERWISE),
    number("--w-ma-high", note=_ACTS_OTHERWISE),
    whole("--critic-steps-min", note="`trainer.wgan.critic_steps` is the fewest"),
    whole("--critic-steps-max", f"{WGAN}.adaptive.max_critic_steps"),
    number("--lambda-gp-min", note="`trainer.wgan.penalty_weight` is the smallest"),
    number("--lambda-gp-max", f"{WGAN}.adaptive.max_penalty_weight"),
    number("--gp-adapt-factor", f"{WGAN}.adaptive.penalty_factor"),
    text("--torch-compile", _COMPILE, values=_MODES, note=_ONE_COMPILE),
    text("--torch-compile-gen", _COMPILE, values=_MODES | {"auto": None}, note=_ONE_COMPILE),
    text("--torch-compile-critic", values=_MODES | {"auto": None}, note=_ONE_COMPILE),
    switch("--allow-tf32", "trainer.precision", values={True: "tf32"}, note="or `bf16`"),
    whole("--log-interval", note="the terminal shows progress by time, not by batches"),
    text("--tb-logdir", option="`RUN_DIR/tensorboard/`", note="always written"),
    text("--tb-run-name", option="`--run-dir`", note="the run directory's name"),
    whole("--tb-log-interval", "trainer.log_every", zero_is_off=True),
    whole("--tb-hist-interval", "trainer.validation.every", zero_is_off=True, note="steps between histograms"),
    whole("--tb-max-muons", note="histograms are of the validation block (`trainer.validation.events`)"),
    text("--tb-sync-to", "outputs.destination", note="checkpoints are copied, too"),
    number("--tb-sync-interval", "outputs.every_s"),
    text("--tb-io", note="the destination's URL says it"),
    text(
        "--critic-pooling",
        f"{WGAN}.network.pooling",
        values={"amax": "max", "mean": "mean"},
        note="or `mean+max`, the default; the number of muons is an input besides",
    ),
    switch("--report-first-batch", "trainer.audit", note="a digest of every microbatch in `audit.jsonl`"),
    whole("--memory-cache-mb", note="files are read once an epoch, and the system caches them"),
    text("--prefetch-dir", "fetcher.cache_dir", note="runs on a node may share it"),
    switch("--prefetch-delete-after-use", note="files are deleted once a checkpoint is past them"),
    whole("--prefetch-max-files", note="staged files are bounded by bytes: `fetcher.disk_budget_gib`"),
    whole("--prefetch-ahead", note="staged ahead by blocks: `fetcher.blocks_ahead`"),
    text("--federation-url", note="the inputs' URLs name it"),
    text(
        "--token",
        option="`--token-file`",
        note="the name of a file with the token: command lines are visible to others",
    ),
    switch(
        "--auto-token",
        option="`icestream token`",
        note="once, before the run, which then renews it; not for local inputs",
    ),
    text(
        "--pelican-scope-path", option="`icestream token --scope`", note="usually not needed: one token for all inputs"
    ),
    text("--pelican-oidc-url", "token.issuer"),
    text("--pelican-auth-cache-file", note="a place that only you can read, chosen by `icestream token`"),
    text("--pelican-storage-prefix", "token.storage_prefix"),
    text("--checkpoint", option="`--done`", note="its files are left out; the position in a run is in its checkpoints"),
    text("--model-checkpoint", option="`RUN_DIR/checkpoints/`", note="old weights can't be used: the networks differ"),
    text("--checkpoint-io", note="written to RUN_DIR, and copied to `outputs.destination`"),
    text(
        "--device",
        "trainer.device",
        values={"auto": "auto", "cpu": "cpu", "cuda": "cuda", "rocm": "cuda"},
        note="`rocm` is `cuda` to torch; `mps` has no counterpart",
    ),
    switch("--print-file-contents", option="`icestream inspect`", note="prints, and trains nothing, as before"),
    whole("--print-max-events", option="`icestream inspect --events`"),
    text(
        "--optimizer", f"{WGAN}.optimiser", values={"adam": "adam", "sgd": "sgd"}, note="the count head always has Adam"
    ),
    number(
        "--lr",
        f"{WGAN}.generator_lr",
        f"{WGAN}.critic_lr",
        f"{WGAN}.count_lr",
        note="one each; not the count head's with `sgd`",
    ),
    number("--momentum", f"{WGAN}.momentum", note="SGD's"),
    whole("--cond-dim", note="follows from the columns"),
    whole("--feat-dim", note="follows from the columns"),
    whole("--latent-dim-global", f"{WGAN}.network.z_global"),
    whole("--latent-dim-local", f"{WGAN}.network.z_local"),
    whole("--hidden-dim", f"{WGAN}.network.hidden"),
    number(
        "--lambda-gp",
        f"{WGAN}.penalty_weight",
        note="1 is right for standardised features; 10 was measured to be too strong",
    ),
    number("--grad-clip-norm", f"{WGAN}.gradient_clip", note="per network"),
    whole("--gp-max-pairs", note="the penalty is of all muons; `trainer.wgan.gp_every` saves time"),
    number("--gp-sample-fraction", note="as `--gp-max-pairs`"),
    whole(
        "--gp-every",
        f"{WGAN}.gp_every",
        note="counted over the whole run and rescaled: λ means the same for every value",
    ),
    whole("--profile-steps", "trainer.profile_steps", note="a trace besides the table"),
    switch(
        "--detect-anomaly",
        note="an update that is not finite is left out, and training goes back: docs/how-to/diagnose.md",
    ),
)

EARLIER: tuple[OldFlag, ...] = (
    whole("--grad-accum-steps", note=_CHUNKS),
    whole("--gradient-accumulation-steps", note=_CHUNKS),
    whole("--accumulation-muon-threshold", note=_CHUNKS),
    text("--dist-backend", note="`nccl` on GPUs, `gloo` on CPUs"),
)
"""Flags of earlier versions, and of the notes on it."""


def rows() -> list[str]:
    """Table of all flags, as Markdown."""
    lines = ["| old flag | icestream | what is different, or why there is none |", "| --- | --- | --- |"]
    for flag in (*FLAGS, *EARLIER):
        name = f"`{flag.name}`" if flag.name != "--infiles" else "`-i`, `--infiles`"
        if flag.alias_of:
            lines.append(f"| {name} | as `{flag.alias_of}` | |")
        else:
            note = f" {flag.note} " if flag.note else " "
            lines.append(f"| {name} | {flag.counterpart or 'not needed'} |{note}|")
    return lines
