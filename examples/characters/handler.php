<?php
// Updates characters: the worker POSTs an update to /characters/ID/update, and each part of one to /ENDPOINT/ID.
//
//   UPSTREAM=https://esi.example PHP_CLI_SERVER_WORKERS=16 php -S 127.0.0.1:8000 handler.php
//
// Needs nothing but PHP. What it gets and may answer is in docs/handlers.md.

/** What there is to fetch of a character. */
const ENDPOINTS = ['assets', 'contracts', 'skills', 'wallet'];

/** An update is a batch of one job for each endpoint; the next update waits for the end of the last of them. */
function updateCharacter(array $job): array
{
    $update = ['nominal' => $job['nominal']] + $job['chain'];
    $fetch = fn ($endpoint) => [
        'kind' => 'fetch-endpoint',
        // A manual refresh has jobs of its own, not those of the rotation.
        'key' => "{$job['key']}/$endpoint/{$update['epoch']}",
        'payload' => ['character_id' => $job['key'], 'endpoint' => $endpoint, 'update' => $update],
    ];
    return [200, [], ['outcome' => 'done', 'batch' => array_map($fetch, ENDPOINTS)]];
}

/** One request. What the upstream says of its error limit is passed on: the worker slows all of them down by it. */
function fetchEndpoint(array $job): array
{
    ['character_id' => $id, 'endpoint' => $endpoint, 'update' => $update] = $job['payload'];
    // What is over must not begin any more: the batch may have gone on without it.
    $left = $job['deadline'] / 1000 - microtime(true);
    if ($left <= 0) {
        return [200, [], ['outcome' => 'retry', 'reason' => 'the run was over before the upstream was asked']];
    }
    // Says which update it is for, to whoever keeps the record.
    $run = json_encode(['update' => $update, 'id' => $job['id'], 'attempt' => $job['attempt']]);
    $context = stream_context_create(['http' => [
        'header' => "X-Run: $run",
        'timeout' => $left,
        'ignore_errors' => true,
    ]]);
    $body = @file_get_contents(getenv('UPSTREAM') . "/characters/$id/$endpoint", false, $context);
    $headers = $body === false ? [] : $http_response_header;
    $limit = preg_grep('/^X-ESI-Error-Limit-/i', $headers);
    $status = preg_match('/^HTTP\S+ (\d+)/', $headers[0] ?? '', $found) ? (int) $found[1] : 0;
    if ($status === 200) {
        return [200, $limit, ['outcome' => 'done']];
    }
    // The error limit is used up: no fault of this job, which comes again when there is a new one.
    if ($status === 420) {
        $reset = preg_match('/^X-ESI-Error-Limit-Reset: (\d+)/mi', implode("\n", $limit), $found) ? (int) $found[1] : 60;
        return [200, $limit, ['outcome' => 'snooze', 'after' => max($reset, 1), 'reason' => 'the error limit is used up']];
    }
    return [502, $limit, ['outcome' => 'retry', 'reason' => "$endpoint: " . ($status ? "HTTP $status" : 'no answer')]];
}

try {
    $job = json_decode(file_get_contents('php://input'), true, 512, JSON_THROW_ON_ERROR);
    $run = $job['kind'] === 'update-character' ? 'updateCharacter' : 'fetchEndpoint';
    [$status, $headers, $answer] = $run($job);
} catch (Throwable $error) {
    [$status, $headers, $answer] = [500, [], ['outcome' => 'retry', 'reason' => $error->getMessage()]];
}
http_response_code($status);
header('Content-Type: application/json');
foreach ($headers as $line) {
    header($line);
}
echo json_encode($answer);
