"""Commands of the muon workload."""

from workloads.base.verb import Verb

_COMMANDS = "workloads.muons.commands"

VERBS = {
    "simulate": Verb(f"{_COMMANDS}.simulate:simulate", "Write muon bundles with known truth (a toy).", "Data"),
    "evaluate": Verb(f"{_COMMANDS}.evaluate:evaluate", "Compare generated with real events: numbers, plots, a page."),
    "generate": Verb(f"{_COMMANDS}.generate:generate", "Write muon bundles of a trained model for primaries."),
    "export": Verb(f"{_COMMANDS}.export:export", "Write a trained generator as torch.export and ONNX files."),
    "migrate": Verb(
        f"{_COMMANDS}.migrate:migrate", "Print the command and settings for an old command of cr_muons.", "Run"
    ),
}
