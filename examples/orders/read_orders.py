"""Show the first eight snapshots."""

import json

from confluent_kafka import Consumer

consumer = Consumer(
    {
        "bootstrap.servers": "localhost:9092",
        "group.id": "orders-reader",
        "auto.offset.reset": "earliest",
    }
)
consumer.subscribe(["orders.products"])
seen = 0
while seen < 8:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        seen = seen + 1
        s = json.loads(message.value() or b"")
        print(
            f"{s['key']} tick {s['tick']}: {s['items']}, sd {s['sd']:.1f}, new items from {s['threshold'] + 1:.0f}"
        )
consumer.close()
