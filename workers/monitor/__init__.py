"""What operators see of a running worker: `/metrics`, `/healthz` and `/readyz` on a port."""
