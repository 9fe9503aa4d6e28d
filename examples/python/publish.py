#!/usr/bin/env python3
"""Publishes one job to Roundelay and exits with 0 only when it is safe.

    publish.py [--url URL] EXCHANGE QUEUE ENVELOPE

    publish.py roundelay.jobs sync-npm '{"v":1,"kind":"sync","key":"npm/ms","id":"order-7"}'
    publish.py roundelay.jobs sync-npm -          # the envelope from standard input

Needs pika (pip install pika). The format of ENVELOPE is in docs/messages.md.
"""

import argparse
import json
import os
import sys

import pika
import pika.exceptions


def publish(channel, exchange, queue, envelope):
    """Returns when the broker has the job; raises when it has not, or may not have."""
    # A wrong queue name would not come back: `roundelay.jobs` keeps such messages aside, and a
    # rung looks at the name only when its time is over. So ask for the queue first.
    channel.queue_declare(queue, passive=True)
    channel.confirm_delivery()
    # From RabbitMQ 4.4 on, a job with `due` sleeps on its queue until then; older brokers ignore this. Not for a rung,
    # which has its own time. An int of this size goes as an AMQP long.
    sleeps = "due" in envelope and exchange == "roundelay.jobs"
    channel.basic_publish(
        exchange,
        routing_key=queue,
        body=json.dumps(envelope).encode(),
        # Fresh properties for every message. Never copy those of a message that was received:
        # with old `x-death` headers RabbitMQ takes a delayed job for one that goes in circles.
        properties=pika.BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent.value,
            message_id=envelope.get("id"),
            headers={"x-opt-delivery-time": envelope["due"]} if sleeps else None,
        ),
        mandatory=True,
    )


def main():
    parser = argparse.ArgumentParser(description="Publishes one job to Roundelay.")
    parser.add_argument("--url", default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f"))
    parser.add_argument("exchange", help="roundelay.jobs, or a rung such as roundelay.delay.30s")
    parser.add_argument("queue", help="the platform queue")
    parser.add_argument("envelope", help="the job as JSON; - is standard input")
    arguments = parser.parse_args()
    try:
        envelope = json.loads(sys.stdin.read() if arguments.envelope == "-" else arguments.envelope)
    except ValueError as error:
        sys.exit(f"the envelope is not JSON: {error}")
    try:
        connection = pika.BlockingConnection(pika.URLParameters(arguments.url))
        publish(connection.channel(), arguments.exchange, arguments.queue, envelope)
        connection.close()
    except pika.exceptions.UnroutableError:
        sys.exit(f"returned: exchange {arguments.exchange} leads to no queue")
    except pika.exceptions.NackError:
        sys.exit("refused by the broker: a queue is full or being deleted")
    except pika.exceptions.AMQPError as error:
        # Absent exchange or queue, or a lost connection: then the broker may have the job all the
        # same. Publish it again with the same `id`, on which handlers are idempotent.
        sys.exit(f"not confirmed: {error!r}")


if __name__ == "__main__":
    main()
