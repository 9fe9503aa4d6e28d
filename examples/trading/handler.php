<?php
// Runs the commands of the trading bot's table: the worker POSTs each of them to /COMMAND/KEY.
//
//   UPSTREAM=https://exchange.example PHP_CLI_SERVER_WORKERS=16 php -S 127.0.0.1:8000 handler.php
//
// Needs nothing but PHP. What it gets and may answer is in docs/handlers.md.
// In production put php-fpm behind a web server: PHP's own gives a process a second request at times while the first
// is not over.

/** The exchange could not do it; the command is tried again, or left to its next occurrence, by the kind's `retry`. */
class Unreachable extends RuntimeException
{
}

/** Asks the exchange, and waits no longer than the run may take. What it is asked for says which run it is for. */
function exchange(string $path, array $job): array
{
    // A run that is over must not begin to trade.
    $left = $job['deadline'] / 1000 - microtime(true);
    if ($left <= 0) {
        throw new Unreachable('the run was over before the exchange was asked');
    }
    $run = ['nominal' => $job['nominal'], 'deadline' => $job['deadline']] + ($job['chain'] ?? []);
    $context = stream_context_create(['http' => [
        'method' => 'POST',
        'header' => 'Content-Type: application/json',
        'content' => json_encode($run),
        'timeout' => $left,
        'ignore_errors' => true,
    ]]);
    $body = @file_get_contents(getenv('UPSTREAM') . $path, false, $context);
    if ($body === false || !preg_match('/^HTTP\S+ 2/', $http_response_header[0] ?? '')) {
        throw new Unreachable("$path: " . ($http_response_header[0] ?? 'no answer'));
    }
    return json_decode($body, true) ?? [];
}

/** The symbols of an exchange are refreshed one by one, and the next refresh waits for the last of them. */
function refreshExchangeSymbols(string $command, array $job): array
{
    $symbols = exchange("/$command/{$job['key']}", $job)['symbols'] ?? [];
    return ['outcome' => 'done', 'batch' => array_map(fn ($name) => ['kind' => 'refresh-symbol', 'key' => $name], $symbols)];
}

/** All other commands are one call each. */
function command(string $command, array $job): array
{
    exchange("/$command/{$job['key']}", $job);
    return ['outcome' => 'done'];
}

try {
    $job = json_decode(file_get_contents('php://input'), true, 512, JSON_THROW_ON_ERROR);
    $run = $job['kind'] === 'refresh-exchange-symbols' ? 'refreshExchangeSymbols' : 'command';
    $answer = $run($job['kind'], $job);
} catch (Throwable $error) {
    $answer = ['outcome' => 'retry', 'reason' => $error->getMessage()];
}
header('Content-Type: application/json');
echo json_encode($answer);
