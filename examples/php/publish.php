#!/usr/bin/env php
<?php
// Publishes one job to Roundelay and exits with 0 only when it is safe.
//
//   publish.php EXCHANGE QUEUE ENVELOPE       (the broker: AMQP_URL)
//
//   publish.php roundelay.jobs sync-npm '{"v":1,"kind":"sync","key":"npm/ms","id":"order-7"}'
//   publish.php roundelay.jobs sync-npm -         # the envelope from standard input
//
// Needs php-amqplib: by composer (vendor/autoload.php) or Debian's php-amqplib. The format of ENVELOPE
// is in docs/messages.md.

use PhpAmqpLib\Connection\AMQPConnectionConfig;
use PhpAmqpLib\Connection\AMQPConnectionFactory;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require is_file(__DIR__ . '/vendor/autoload.php') ? __DIR__ . '/vendor/autoload.php' : 'PhpAmqpLib/autoload.php';

function connect(string $url): PhpAmqpLib\Connection\AbstractConnection
{
    $at = parse_url($url);
    $config = new AMQPConnectionConfig();
    $config->setHost($at['host'] ?? 'localhost');
    $config->setPort($at['port'] ?? 5672);
    $config->setUser(rawurldecode($at['user'] ?? 'guest'));
    $config->setPassword(rawurldecode($at['pass'] ?? 'guest'));
    $config->setVhost(rawurldecode(substr($at['path'] ?? '', 1)) ?: '/');
    $config->setIsSecure(($at['scheme'] ?? '') === 'amqps');
    return AMQPConnectionFactory::create($config);
}

/** Returns when the broker has the job; throws when it has not, or may not have. */
function publish(PhpAmqpLib\Channel\AMQPChannel $channel, string $exchange, string $queue, array $envelope, string $body): void
{
    // A wrong queue name would not come back: `roundelay.jobs` keeps such messages aside, and a
    // rung looks at the name only when its time is over. So ask for the queue first.
    $channel->queue_declare($queue, true);
    $channel->confirm_select();
    $problem = null;
    $channel->set_return_listener(function () use (&$problem, $exchange) {
        $problem = "returned: exchange $exchange leads to no queue";
    });
    $channel->set_nack_handler(function () use (&$problem) {
        $problem = 'refused by the broker: a queue is full or being deleted';
    });
    // Fresh properties for every message. Never copy those of a message that was received: with old
    // `x-death` headers RabbitMQ takes a delayed job for one that goes in circles.
    $properties = ['content_type' => 'application/json', 'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
    if (isset($envelope['id'])) {
        $properties['message_id'] = $envelope['id'];
    }
    // From RabbitMQ 4.4 on, a job with `due` sleeps on its queue until then; older brokers ignore this.
    // Not for a rung, which has its own time. An integer of this size goes as an AMQP long.
    if (isset($envelope['due']) && $exchange === 'roundelay.jobs') {
        $properties['application_headers'] = new AMQPTable(['x-opt-delivery-time' => $envelope['due']]);
    }
    $channel->basic_publish(new AMQPMessage($body, $properties), $exchange, $queue, true);
    $channel->wait_for_pending_acks_returns(30);
    if ($problem !== null) {
        throw new RuntimeException($problem);
    }
}

try {
    if ($argc !== 4) {
        throw new RuntimeException('usage: publish.php EXCHANGE QUEUE ENVELOPE');
    }
    [, $exchange, $queue, $text] = $argv;
    $body = $text === '-' ? stream_get_contents(STDIN) : $text;
    // The body goes as it is: PHP would write an empty object as an empty list.
    $envelope = json_decode($body, true, 512, JSON_THROW_ON_ERROR);
    $connection = connect(getenv('AMQP_URL') ?: 'amqp://guest:guest@localhost:5672/%2f');
    publish($connection->channel(), $exchange, $queue, $envelope, $body);
    $connection->close();
} catch (Throwable $problem) {
    // Unless it was returned, the broker may have the job all the same. Publish it again with the
    // same `id`, on which handlers are idempotent.
    fwrite(STDERR, "not published: {$problem->getMessage()}\n");
    exit(1);
}
