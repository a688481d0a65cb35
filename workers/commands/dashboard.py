"""`quietcount dashboard`: print the page's address and serve it until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path

from workers.dashboard.config import load_dashboard, read_token
from workers.dashboard.server import Dashboard, is_open_to_others, serve
from workers.kafka.outages import without_outages


def run_dashboard(config: Path, *, host: str, port: int, token_file: Path | None) -> int:
    settings = load_dashboard(config)
    without_outages()
    token = read_token(token_file) if token_file is not None else None
    if is_open_to_others(host, token):
        print(
            f"quietcount: --host {host} without --token-file: whoever can reach this port can read the histograms",
            file=sys.stderr,
        )
    if token_file is not None and token_file.stat().st_mode & 0o077:
        print(
            f"quietcount: {token_file}: others on this machine may read the token: `chmod 600`",
            file=sys.stderr,
        )
    dashboard = Dashboard(settings, host=host, port=port, token=token)
    return serve(dashboard, lambda url: print(f"Dashboard of {settings.worker}: {url}", flush=True))
