"""Send 30,000 made-up orders in six seconds, and keep a copy in events.jsonl."""

import json
import random
import time

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "localhost:9092"})
with open("events.jsonl", "w") as copy:
    for i in range(30_000):
        products = random.choices(
            ["tea", "cup", "pot", "spoon", "samovar"], [50, 30, 15, 5, 0.01], k=2
        )
        event = json.dumps(
            {
                "shop": random.choice(["s1", "s2"]),
                "products": products,
                "ts": int(time.time() * 1000),
            }
        )
        producer.produce("orders", event)
        print(event, file=copy)
        if i % 100 == 0:
            time.sleep(0.02)
producer.flush()
