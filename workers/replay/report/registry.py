"""The facts of a plan as an entry of the public registry of differential privacy deployments.

The registry (opendp/deployments-registry-data) keeps one YAML file for each deployment. Settings
know how data are protected; who publishes them, why, and since when, they do not: those fields
begin with "TODO". `plan --registry` prints the entry, and the plan's page shows the same facts.
"""

from collections.abc import Iterable, Iterator, Mapping

import yaml

from workers.privacy.model import Plan, Total
from workers.privacy.plan.text import adding_up, seen_of
from workers.privacy.promise import fingerprint
from workers.replay.report.pages import sentences
from workers.replay.report.promise import epoch_of, published, seen_by
from workers.settings.settings import Settings

Facts = Mapping[str, Mapping[str, object]]
"""Values by the registry's sections and fields: texts, or numbers by name."""

_HEAD = """\
# A draft by `quietcount plan --registry`, from settings alone. Replace what begins with TODO, and the
# date; then run the registry's scripts/update_slug.py and scripts/check.py.
"""
_UNKNOWN_DATE = "1900-01-01"


def entry_text(settings: Settings, plan: Plan) -> str:
    """Return the entry as YAML: a draft of tier 3, what the settings promise and how."""
    name = f"Quietcount worker {settings.worker.name}"
    curator = "TODO: who publishes"
    basic = {
        "name": name,
        "data_curators": [curator],
        "intended_use": "TODO: what the statistics are for",
        "data_product_type": "Summary statistics",
        "data_product_region": "TODO: which region the events come from",
        "description": _listed(
            f"{topics}: {words}" for topics, words in published(settings, plan)
        ),
        "publication_date": _UNKNOWN_DATE,
    }
    administrative = {
        "sources": "TODO: where the statistics and their documents are",
        "notes": f"SHA-256 of the settings that the promise depends on: {fingerprint(settings)}",
        "registry_authors": ["TODO: who wrote this entry"],
    }
    entry = {
        # The third part is the year.
        "url_slug": _slug(f"{name}_{curator}_{_UNKNOWN_DATE[:4]}"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            **registry_facts(settings, plan),
            "administrative": administrative,
        },
    }
    written: str = yaml.dump(
        entry, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return _HEAD + written


def registry_facts(settings: Settings, plan: Plan) -> Facts:
    """Return what the settings decide, by the registry's sections and fields."""
    total = plan.total
    epsilon = None if total.delta >= 1 else total.epsilon
    # A pattern of topics has no names.
    topics = settings.events.topics.names or (str(settings.events.topics),)
    return {
        "dp_variant": {
            # Delta is never 0, as samplers may be off their laws.
            "variant_name": "Approximate DP",
            "data_domain": f"All sequences of records that {', '.join(topics)} may hold.",
            "unprotected_quantities": _listed(_unprotected(plan)),
        },
        "privacy_loss": {
            "privacy_unit": "Event-level"
            if total.unit == "event"
            else "User-epoch-level",
            "privacy_unit_details": _listed(_neighbours(settings, plan)),
            "privacy_parameters": _parameters(total),
            "privacy_parameters_details": " ".join(
                sentences(epsilon, total.delta, total.unit, seen_of(plan.histograms))
            ),
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": "A worker reads exact events and publishes noisy snapshots.",
            "actors": _listed(
                f"{who or 'also'}: {what}" for who, what in seen_by(settings)
            ),
            "release_type": "Many releases",
            "release_type_details": _listed(
                f"{one.name}: a snapshot at every tick. Epoch: {epoch_of(one)}"
                for one in plan.histograms
            ),
            "data_source_type": "Dynamic",
            "data_source_type_details": "Events arrive for as long as the stream runs.",
            "access_type": "Non-interactive",
            "access_type_details": "The settings name what is published before events are read.",
        },
        "accounting": {
            "post_processing": "Noisy counts are compared with thresholds. Means, shares, quantiles and changes are "
            "computed from published numbers.",
            "composition": _listed(adding_up(total)),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Before it is counted, each event is bounded by a rule that "
            "reads nothing else. TODO: how the settings were chosen, and from which data.",
            "mechanisms": _listed(_mechanisms(plan)),
            "justification": "TODO: why these settings. Proofs are in docs/decisions of Quietcount.",
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, the only form that the registry takes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _slug(text: str) -> str:
    """Return a text as the registry writes it in addresses (its scripts/update_slug.py)."""
    letters = (
        letter if letter.isalnum() or letter == "_" else " " for letter in text.lower()
    )
    return "-".join("".join(letters).split()).replace("_", "-")


def _unprotected(plan: Plan) -> Iterator[str]:
    """Yield what anyone sees without noise."""
    if plan.deliver_after_ms is None:
        yield "How many records arrived, when, and in which partition; when snapshots appear"
    for one in plan.histograms:
        if one.keys is None:
            yield f"{one.name}: the name of every stream key, even if it occurs once"
    yield "The settings, with declared stream keys and items"


def _neighbours(settings: Settings, plan: Plan) -> Iterator[str]:
    """Yield which streams are adjacent, and how far that moves each histogram."""
    record = "one record (one event)"
    content = "the content of one event (one record)"
    if plan.total.unit == "user":
        of_user = f"of one user (field {settings.user_field}) in one epoch"
        record = f"all records {of_user}"
        content = f"the contents of all events {of_user}"
    # None: a record's arrival decides when ticks are closed, so it is not protected.
    if plan.deliver_after_ms is None:
        yield f"Two streams are adjacent if one is the other with {content} emptied; the records' arrival stays"
    else:
        yield f"Two streams are adjacent if one is the other without {record}"
    for config, one in zip(settings.histograms, plan.histograms, strict=True):
        counts = config.max_items_per_user or config.max_items
        yield f"{one.name}: that changes at most {counts} counts, each by at most {one.max_count}"


def _parameters(total: Total) -> Mapping[str, float]:
    """Return the parameters that are promised; none if delta is 1 or more."""
    if total.delta >= 1:
        return {}
    return {"epsilon": total.epsilon, "delta": total.delta, "rho": total.rho}


def _mechanisms(plan: Plan) -> Iterator[str]:
    """Yield the mechanism of each histogram, and how noise is drawn."""
    for one in plan.histograms:
        counter = f" with counter {one.counter}" if one.counter else ""
        yield f"{one.name}: {one.mechanism}{counter}, {one.noise.law} noise on {one.noise.on}"
    yield "Noise is drawn by AES under a secret key, and rounded to integers with proved error bounds"
    yield "The exact input of a tick is durable before the tick is published; after a restart it has the same bytes"


def _listed(sentences: Iterable[str]) -> str:
    """Return sentences as a list in Markdown; one alone stays a sentence."""
    lines = list(sentences)
    if len(lines) == 1:
        return lines[0]
    return "".join(f"- {line}\n" for line in lines)
