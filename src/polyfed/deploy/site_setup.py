"""How a site prepares for a run: with its own data and model, or in rehearsal with its part of a public dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyfed.config import Config
from polyfed.core.client_host import ClientMaker
from polyfed.deploy.agreement import SITES
from polyfed.deploy.offers import Offer
from polyfed.deploy.site_errors import SiteRefusalError
from polyfed.deploy.site_federation import SiteFederation, load_site
from polyfed.federation import simulation

# Prepares a site for the run of a config: returns what makes its client, and its offer.
SiteSetup = Callable[[Config], tuple[ClientMaker, Offer]]


def own_data_setup(name: str, data: Path, model: str, state: Path, start: Path | None = None) -> SiteSetup:
    """Return the setup of a site with its own data and model. Decoded data are cached in its folder `state`.

    `start` is the file or the folder with the trained weights that the model starts from.
    """

    def setup(config: Config) -> tuple[ClientMaker, Offer]:
        if config.data.dataset != SITES:
            raise SiteRefusalError(
                f"the run partitions the dataset {config.data.dataset}, so all sites must rehearse; this site has "
                "data of its own"
            )
        site = load_site(config, name, data, model, cache=state / ".data", start=start)
        return site, site.offer()

    return setup


def rehearsal_setup(name: str) -> SiteSetup:
    """Return the setup of a site that uses its part of the config's dataset, and the model of the config."""

    def setup(config: Config) -> tuple[ClientMaker, Offer]:
        if config.data.dataset == SITES:
            raise SiteRefusalError(
                "the run uses the sites' own data; this site rehearses, and would need --data and --model"
            )
        federation = simulation.build_federation(config)
        if name not in federation.positions:
            raise SiteRefusalError(
                f"site {name} is not part of this run; its sites are {', '.join(federation.names)}"
            )
        k = federation.positions[name]
        return federation, Offer(federation.profile(k), f"share {k} of {federation.source}", {})

    return setup


def setup_fingerprint(maker: ClientMaker, offer: Mapping[str, Any]) -> bytes:
    """Return the offer and a digest of a sample of the data. It identifies the site's setup and stays at the site."""
    digest = hashlib.sha256()
    if isinstance(maker, SiteFederation):
        images, labels = maker.train.inputs, maker.train.labels
        digest.update(labels.numpy().tobytes())
        digest.update(images[:: max(1, len(images) // 64)].contiguous().numpy().tobytes())
    return json.dumps({"offer": offer, "data": digest.hexdigest()}, sort_keys=True).encode()
