<?php
// Handles the jobs of a kind: the worker POSTs each of them here.
//
//   PHP_CLI_SERVER_WORKERS=4 php -S 127.0.0.1:8000 handler.php
//
// Needs nothing but PHP. With WEBHOOK_SECRET, the `sign` of the kind, only calls that are signed with it are
// answered. What it gets and may answer is in docs/handlers.md.

class Busy extends Exception
{
}

/**
 * What is wrong with the signature of a call, if anything is: https://www.standardwebhooks.com/. Whoever reaches this
 * port could call; the signature tells that it was the worker.
 */
function notSigned(string $body, string $secret): ?string
{
    [$id, $sent, $signatures] = array_map(
        fn ($name) => $_SERVER["HTTP_WEBHOOK_$name"] ?? '',
        ['ID', 'TIMESTAMP', 'SIGNATURE'],
    );
    // What somebody has kept is of no use after five minutes.
    if (!ctype_digit($sent) || abs(time() - (int) $sent) > 300) {
        return 'webhook-timestamp is absent, or more than five minutes away';
    }
    $key = base64_decode(substr($secret, strlen('whsec_')), true);
    if (!str_starts_with($secret, 'whsec_') || !$key) {
        throw new RuntimeException('WEBHOOK_SECRET is not whsec_ and base64');
    }
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$sent.$body", $key, true));
    foreach (explode(' ', $signatures) as $signature) {
        // Takes the same time wherever they differ.
        if (hash_equals($expected, $signature)) {
            return null;
        }
    }
    return 'no signature of this secret';
}

// A job may come again: its worker may die after the work and before the record. Keep this where the
// effect is, in the same transaction; here it is an empty file for each id.
function mark(string $what, string $id): string
{
    $folder = getenv('DONE_FOLDER') ?: sys_get_temp_dir() . '/roundelay-done';
    is_dir($folder) || @mkdir($folder, 0700, true);
    return "$folder/$what-" . sha1($id);
}

/** The work. A payload with "busy" stands for an upstream that is busy when it is asked first. */
function sync(array $job): void
{
    if (($job['payload']['busy'] ?? false) && !file_exists(mark('asked', $job['id']))) {
        touch(mark('asked', $job['id']));
        throw new Busy('the upstream is busy', 1);
    }
    file_put_contents('php://stdout', "synced {$job['key']} {$job['id']}\n");
}

/** A status, further headers, and what the run came to. */
function answer(array $job): array
{
    if (file_exists(mark('done', $job['id']))) {
        return [200, [], ['outcome' => 'done']];
    }
    if (!isset($job['payload']['name'])) {
        // Trying again would not help.
        return [200, [], ['outcome' => 'fail', 'reason' => 'the payload has no name']];
    }
    try {
        sync($job);
    } catch (Busy $busy) {
        // Comes again then, with no attempt charged; whatever else waits for the same throttle waits, too.
        return [503, ["Retry-After: {$busy->getCode()}"], null];
    }
    touch(mark('done', $job['id']));
    return [200, [], ['outcome' => 'done']];
}

$body = file_get_contents('php://input');
$secret = getenv('WEBHOOK_SECRET') ?: null;
try {
    // Before anything of it is read.
    $problem = $secret === null ? null : notSigned($body, $secret);
    [$status, $headers, $outcome] = $problem === null
        ? answer(json_decode($body, true, 512, JSON_THROW_ON_ERROR))
        : [401, [], ['error' => $problem]];
} catch (Throwable $error) {
    // Tried again, by the kind's `retry`.
    [$status, $headers, $outcome] = [500, [], ['outcome' => 'retry', 'reason' => $error->getMessage()]];
}
http_response_code($status);
array_map('header', $headers);
echo json_encode($outcome);
