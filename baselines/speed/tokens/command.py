"""Measures language models: what decoding, continuous batching and training reach here.

    python -m troupe.baselines.speed.tokens                # shares and ratios, of 10 million
    python -m troupe.baselines.speed.tokens --only rates   # of 124 million and 1.3 billion

Decoding stands beside a bare loop over its products, continuous batching beside static batches of
the same answers, in the same run. Rates are tokens a second of decoding and of training, the share
of the device's peak, and the seconds in which parameters are made ready for the sampler. On CPU all
seconds are those of the processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax

from ....agents.networks.decoder import DecoderConfig, num_parameters
from ....agents.networks.decoder_presets import preset
from . import decoding, rates

_PARTS = ("decoding", "batching", "rates")
_LARGE = 1_000_000_000
"""Parameters above which training computes layers again, as their activations do not fit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints all that is measured; status 2 if a preset is unknown."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="*", choices=_PARTS, default=_PARTS, metavar="PART")
    parser.add_argument("--preset", default="10m", help="of decoding and batching (default 10m)")
    parser.add_argument("--presets", nargs="*", help="of rates (default 124m 1.3b; on CPU tiny)")
    parser.add_argument("--batch", type=int, default=16, help="rows or slots (default 16)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt (default 32)")
    parser.add_argument("--length", type=int, default=128, help="tokens of an answer (default 128)")
    parser.add_argument("--batches", type=int, default=8, help="of answers (default 8)")
    parser.add_argument("--train-batch", type=int, default=8, help="rows (default 8)")
    parser.add_argument("--train-length", type=int, default=1016, help="tokens (default 1016)")
    parser.add_argument("--rounds", type=int, default=3, help="of all (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(argv)
    device = jax.devices()[0]
    names = options.presets or (("tiny",) if device.platform == "cpu" else ("124m", "1.3b"))
    try:
        config, configs = preset(options.preset), {name: preset(name) for name in names}
    except ValueError as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 2
    sizes = {"prompt": options.prompt, "length": options.length, "rounds": options.rounds}
    found: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__}
    if "decoding" in options.only:
        found["decoding"] = decoding.decoding(config, batch=options.batch, **sizes)
    if "batching" in options.only:
        found["batching"] = decoding.batching(
            config, slots=options.batch, batches=options.batches, **sizes
        )
    if "rates" in options.only:
        found["rates"] = [_rates(name, one, options, sizes) for name, one in configs.items()]
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 0


def _rates(
    name: str, config: DecoderConfig, options: argparse.Namespace, sizes: dict[str, int]
) -> dict[str, Any]:
    again = dataclasses.replace(config, rematerialize=num_parameters(config) >= _LARGE)
    train = {"batch": options.train_batch, "prompt": 8, "length": options.train_length}
    return {
        "preset": name,
        "parameters": num_parameters(config),
        **decoding.decoding(config, batch=options.batch, **sizes),
        **rates.training(again, rounds=options.rounds, **train),
        **rates.sync(config, options.rounds),
    }


def table(found: dict[str, Any]) -> str:
    """The figures as lines for people."""
    lines = [f"{found['device']}, jax {found['jax']}"]
    if one := found.get("decoding"):
        lines.append(f"decoding: {_decoded(one, 'a bare loop over the same products')}")
    if one := found.get("batching"):
        lines.append(
            f"continuous batching: {one['continuous_tokens_per_second']:,.0f} tokens/s, "
            f"{one['continuous_over_static']:.2f} times static batches, whose answers have "
            f"{one['mean_length']:.0f} tokens and the longest of a batch "
            f"{one['longest_of_batches']:.0f}"
        )
    for one in found.get("rates", ()):
        share = (
            f" (MFU {one['mfu']:.2f}, {one['of_products']:.2f} of a product's rate)"
            if one["mfu"] is not None
            else ""
        )
        lines.append(
            f"{one['preset']}, {one['parameters'] / 1e6:,.1f} million parameters: decodes "
            f"{_decoded(one, 'the bare loop')}, trains "
            f"{one['train_tokens_per_second']:,.0f} tokens/s{share}, "
            f"sync {one['sync_seconds'] * 1e3:.2f} ms"
        )
    return "\n".join(lines)


def _decoded(one: dict[str, Any], bare: str) -> str:
    if one["share_of_bare"] is None:
        return "faster than is measured (longer answers or more rounds tell)"
    rate, share = one["decode_tokens_per_second"], one["share_of_bare"]
    return f"{rate:,.0f} tokens/s, {share:.2f} of {bare}"
