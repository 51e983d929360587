"""Which config key a user meant: names of other libraries, keys of other sections, and misspelt keys."""

from __future__ import annotations

from pydantic import BaseModel

from polyfed.errors import closest

# names in HtFLlib, PFLlib, Flower, FedLab and papers
SYNONYMS = {
    "train.lr": (
        "learning_rate",
        "local_learning_rate",
        "client_lr",
        "local_lr",
        "lr_client",
        "eta",
    ),
    "train.epochs": ("local_epochs", "local_epoch", "num_epochs", "n_epochs", "local_ep", "client_epochs", "epoch"),
    "train.steps": ("local_steps", "max_steps", "num_steps", "local_updates"),
    "train.batch_size": ("batchsize", "batch", "bs", "local_bs", "local_batch_size", "train_batch_size"),
    "train.weight_decay": ("wd", "l2"),
    "train.clip_norm": ("max_grad_norm", "grad_clip", "gradient_clip", "clip_grad_norm"),
    "train.optimizer": ("optimiser", "optim", "client_optimizer"),
    "clients": ("num_clients", "n_clients", "num_users", "client_num", "total_clients", "num_supernodes", "nodes"),
    "rounds": (
        "num_rounds",
        "n_rounds",
        "global_rounds",
        "num_server_rounds",
        "communication_rounds",
        "comm_rounds",
        "global_epochs",
    ),
    "participation": (
        "join_ratio",
        "fraction_fit",
        "fraction_train",
        "client_fraction",
        "sample_ratio",
        "participation_rate",
        "clients_per_round",
        "frac",
    ),
    "method": ("algorithm", "algo", "strategy", "fed_algorithm"),
    "data.dataset": ("dataset_name", "data_name"),
    "data.root": ("data_dir", "data_path", "dataset_path", "dataset_dir"),
    "data.partition.scheme": ("partitioner", "partition_method", "partition_type", "split"),
    "data.partition.alpha": ("alpha", "dir_alpha", "dirichlet_alpha", "dirichlet", "concentration"),
    "models.group": ("model", "architecture", "architectures", "model_family", "model_name", "net"),
    "evaluate.every": ("eval_gap", "eval_every", "eval_interval", "test_interval", "evaluate_every"),
    "engine.name": ("backend", "simulator"),
    "engine.workers": ("num_workers", "n_jobs", "num_processes", "processes"),
    "seed": ("random_seed", "rng_seed", "random_state", "seeds"),
    "name": ("run_name", "exp_name", "experiment_name"),
    "server_filter": ("filter",),
    "aggregation": ("aggregator", "aggregation_rule", "robust_aggregation", "defense", "defence"),
    "track": ("logger", "loggers", "tracker", "trackers"),
}
_BY_SYNONYM = {synonym: key for key, synonyms in SYNONYMS.items() for synonym in synonyms}


def meant_key(key: str, keys: list[str]) -> str | None:
    """Return the dotted key that a user meant by an unknown dotted key, or None. `keys` are all valid keys.

    An exact name in another section comes first, then the name that other libraries use, then a misspelt name.
    """
    section, _, last = key.rpartition(".")
    leaf = last.lower().replace("-", "_")
    elsewhere = [known for known in keys if known.rpartition(".")[2] == leaf]
    if len(elsewhere) == 1 and elsewhere[0] != key:
        return elsewhere[0]
    if _BY_SYNONYM.get(leaf, key) != key:
        return _BY_SYNONYM[leaf]
    siblings = {known.rpartition(".")[2]: known for known in keys if known.rpartition(".")[0] == section}
    match = closest(leaf, siblings)
    if match is not None:
        return siblings[match]
    match = closest(leaf, _BY_SYNONYM)
    return _BY_SYNONYM[match] if match is not None else None


def all_keys(root: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted keys of a config and its sections."""
    keys = []
    for name, field in root.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        keys.append(key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += all_keys(field.annotation, f"{key}.")
    return keys
