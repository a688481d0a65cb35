"""Commands that read events read what a worker does, up to a transaction that is open."""

from pathlib import Path

from tests.kafka.produced import produce_batch, two_members
from tests.quietcount import Quietcount
from tests.worker.harness import Site, now_ms, sale, unk
from tests.worker.test_open_transactions import open_transaction

NUMBER = 600


def test_commands_read_what_the_worker_reads_up_to_an_open_transaction(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    """Of a gzip batch of two members, which librdkafka does not read, each once saw half."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=1)
    begin_ms = now_ms() - 100_000
    sold = [sale([f"p{i % 7}"], begin_ms + i, f"k{i % 3}") for i in range(NUMBER)]
    produce_batch(bootstrap, site.topic, 0, two_members(sold))
    upstream = open_transaction(site, 0, sold[-1])
    site.produce(0, sold[-50:])
    init = f"init --bootstrap {bootstrap} --topic {site.topic} --keys public"
    commands = {
        f"check -c {site.config}": "accepted {0} 100.0 %",
        f"replay -c {site.config} --topic": "replay: {0} events, 0 rejected",
        f"{init} --output {tmp_path}/new-": "{0} of",
    }
    where = f"{site.topic}[0]: ends at offset {NUMBER}, where a transaction is open"
    for number, is_open in ((NUMBER, True), (NUMBER + 51, False)):
        for command, told in commands.items():
            run = f"{command}{number}.toml" if command.startswith(init) else command
            printed = quietcount(run)
            said = f"{printed.words} {printed.err}"
            assert told.format(number) in said, command
            assert (where in said) is is_open, command
        if is_open:
            upstream.commit_transaction(60)
