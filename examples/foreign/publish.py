#!/usr/bin/env python3
"""Publishes a job to Roundelay with pika, and fails loudly when it did not get there.

    publish.py AMQP_URL EXCHANGE QUEUE KIND KEY [PAYLOAD]

EXCHANGE is roundelay.jobs for now, roundelay.delay.30s for 30 seconds later. PAYLOAD is JSON.
Exit code 0 means that the broker has confirmed the message.
"""

import json
import sys
import uuid

import pika


def main(arguments):
    if len(arguments) not in (5, 6):
        sys.exit(__doc__)
    url, exchange, queue, kind, key = arguments[:5]
    job = {"v": 1, "kind": kind, "key": key, "id": uuid.uuid4().hex}
    if len(arguments) == 6:
        job["payload"] = json.loads(arguments[5])

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, content_type="application/json", message_id=job["id"])
    try:
        # Returns when the broker has confirmed; raises when it refused or returned the message.
        channel.basic_publish(exchange, queue, json.dumps(job), properties, mandatory=True)
    except pika.exceptions.UnroutableError:
        sys.exit(f"{exchange} leads nowhere for {queue}: returned")
    except pika.exceptions.NackError:
        sys.exit("the broker refused the message")
    except pika.exceptions.ChannelClosedByBroker as closed:
        sys.exit(f"the broker closed the channel: {closed.reply_text}")
    connection.close()
    print(job["id"])


main(sys.argv[1:])
