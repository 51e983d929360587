"""pFedLA: its mixing weights, the mixed models, and the direction of the hypernetwork update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfed.core.client import weights_of
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.methods.pfedla import PFedLA
from polyfed.testing.rounds import InMemoryClients
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = ([0, 1, 2], [0, 0, 1, 2, 2], [1, 1])


def server_for(method: PFedLA, linears: Any, trained: bool = True) -> tuple[Server, list[Any]]:
    """Return a server of three clients with different weights."""
    make = linears()
    server = InMemoryClients(method, make.several(*LABELS)).server(rounds=1)
    method.init(server)
    models = [weights_of(make.model(f"model {k}")) for k in range(3)]
    if trained:
        server.state |= {f"model {k}": model for k, model in enumerate(models)}
    return server, models


def test_rows_of_mixing_weights_sum_to_1(linears: Any) -> None:
    method = PFedLA()
    server, _ = server_for(method, linears)
    for k in "012":
        alpha = method.mixing_weights(server, k, method.hypernetwork(server, k))
        assert alpha.shape == (2, 3)  # two layers, a weight and its bias being one; three clients
        assert bool((alpha >= 0).all()) and torch.allclose(alpha.sum(1), torch.ones(2))


def test_zero_rows_keep_the_own_layer_and_record_a_warning(linears: Any) -> None:
    method = PFedLA()
    server, models = server_for(method, linears)
    net = method.hypernetwork(server, "1")
    last = net.body[-1]
    with torch.no_grad():
        last.weight[:3] = 0  # type: ignore[operator]
        last.bias[:3] = -1  # type: ignore[operator]
    alpha = method.mixing_weights(server, "1", net)
    assert alpha[0].tolist() == [0, 1, 0]
    assert "1 rows of client 1" in str(server.events[-1]["message"])
    mixed = method.mixed(server, models, "1", alpha.detach())
    assert torch.equal(mixed["backbone.1.weight"], models[1]["backbone.1.weight"])


def test_own_weight_1_is_local_and_equal_weights_are_the_mean(linears: Any) -> None:
    method = PFedLA()
    server, models = server_for(method, linears)
    own = method.mixed(server, models, "2", method.one_hot(server, "2"))
    mean = method.mixed(server, models, "2", torch.full((2, 3), 1 / 3))
    for name in own:
        assert torch.equal(own[name], models[2][name])
        assert torch.allclose(mean[name], (models[0][name] + models[1][name] + models[2][name]) / 3, atol=1e-7)


def test_layers_have_separate_mixing_weights(linears: Any) -> None:
    method = PFedLA()
    server, models = server_for(method, linears)
    mixed = method.mixed(server, models, "0", torch.tensor([[0.0, 1, 0], [0.25, 0, 0.75]]))
    assert torch.equal(mixed["backbone.1.bias"], models[1]["backbone.1.bias"])
    assert torch.allclose(mixed["head.weight"], 0.25 * models[0]["head.weight"] + 0.75 * models[2]["head.weight"])


def test_the_mixed_model_moves_towards_the_trained_one(linears: Any) -> None:
    # After a small step of the hypernetwork: <bar theta_new - bar theta_old, Delta_k> > 0. All outputs are made
    # positive, for a row in which ReLU leaves only one is that one's whatever happens.
    method = PFedLA(hyper_lr=0.001)
    server, models = server_for(method, linears)
    for k in "012":
        net = method.hypernetwork(server, k)
        torch.nn.init.ones_(net.body[-1].get_parameter("bias"))
        alpha = method.mixing_weights(server, k, net)
        old = method.mixed(server, models, k, alpha.detach())
        change = {name: models[(int(k) + 1) % 3][name].double() - t.double() for name, t in old.items()}
        method.update_hypernetwork(server, net, alpha, models, change)
        new = method.mixed(server, models, k, method.mixing_weights(server, k, net).detach())
        assert sum(float(((new[name] - t) * change[name]).sum()) for name, t in old.items()) > 0


def test_only_participants_change_at_the_server() -> None:
    with ToyFederation(PFedLA, {}) as toy:
        outcome = toy.run(selected=lambda number: ("1", "3")).checked()
        held: dict[str, Any] = {k: outcome.client(k)["model"] for k in "13"}
    assert {name for name in outcome.server if name.startswith("model")} == {"model 1", "model 3"}
    for k, model in held.items():
        stored: Any = outcome.server[f"model {k}"]
        assert all(torch.equal(stored[name], t) for name, t in model.items())  # theta_k = bar theta_k + Delta_k


def test_statistics_stay_at_the_client() -> None:
    # the counter of BatchNorm is the client's own number of batches: shares of 9 to 12 samples in eights, two rounds
    with ToyFederation(PFedLA, {}) as toy:
        outcome = toy.run().checked()
    for k, share in enumerate(CLASS_COUNTS):
        stored: Any = outcome.server[f"model {k}"]
        counters = {int(t) for name, t in stored.items() if name.endswith("num_batches_tracked")}
        batches = -(-sum(share) // 8) - (sum(share) % 8 == 1)
        assert counters == {2 * batches}


def test_layers_that_stay_at_the_client_are_not_sent(linears: Any) -> None:
    # Down in the first round is the whole model for all; then without the layers of largest own weight. With all of
    # them local nothing goes down but what is in no layer, and the clients train on alone.
    with ToyFederation(PFedLA, {}) as toy:
        whole = toy.run().checked()
        layers = len(PFedLA().layers(_first_server(toy)))
        some = toy.run(method=PFedLA(local_layers=2)).checked()
        every = toy.run(method=PFedLA(local_layers=layers)).checked()
    down = [[stats.down["model"] for stats in outcome.round_stats] for outcome in (whole, some, every)]
    assert down[0][0] == down[0][1] == down[1][0] == down[2][0] == whole.round_stats[0].up["model"]
    assert 0 < down[1][1] < down[0][1] and down[2][1] == 0
    assert all(stats.up == whole.round_stats[0].up for stats in some.round_stats)


def _first_server(toy: ToyFederation) -> Server:
    federation = toy.federation(toy.config())
    server = federation.server(federation.profiles())
    PFedLA().init(server)
    return server


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"hyper_lr": 0.0}, "hyper_lr is 0, which switches PFedLA off"),
        ({"local_layers": -1}, "at least 0"),
        ({"embedding": 0}, "at least 1"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        PFedLA(**fields)


def test_too_many_local_layers_raise(linears: Any) -> None:
    with pytest.raises(InputError, match="local_layers is 3, but the model has 2 layers"):
        server_for(PFedLA(local_layers=3), linears)
